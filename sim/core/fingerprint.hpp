#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace kvtier {

/// FNV-1a hash of texts and files in order. It tells inputs and results apart; it is not
/// cryptographic.
class Fingerprint {
 public:
  void add(std::string_view text);
  /// Adds the content of a file, or the names and contents of a folder. Adds "no file" for a pipe,
  /// which can be read only once, and for an unreadable file.
  void add_file(const std::filesystem::path& path);
  /// 16 hexadecimal digits.
  [[nodiscard]] std::string text() const;

 private:
  void step(unsigned char byte) { hash_ = (hash_ ^ byte) * 0x100000001b3ULL; }

  std::uint64_t hash_ = 0xcbf29ce484222325ULL;
};

/// The fingerprint of one text.
[[nodiscard]] std::string fingerprint(std::string_view text);

}  // namespace kvtier
