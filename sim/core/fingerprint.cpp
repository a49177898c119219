#include "sim/core/fingerprint.hpp"

#include <array>
#include <cstdio>
#include <memory>

#include <fmt/format.h>

#include "sim/core/file.hpp"

namespace kvtier {

void Fingerprint::add(std::string_view text) {
  for (const char c : text) {
    step(static_cast<unsigned char>(c));
  }
  step(0);  // so that "ab", "c" is not "a", "bc"
}

void Fingerprint::add_file(const std::filesystem::path& path) {
  if (is_folder(path)) {
    for (const std::filesystem::path& file : folder_entries(path)) {
      add(file.filename().string());
      add_file(file);
    }
    return;
  }
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(
      is_file(path) ? std::fopen(path.c_str(), "rb") : nullptr, &std::fclose);
  if (file == nullptr) {
    return add("no file");
  }
  std::array<char, 1 << 16> buffer{};
  std::size_t count = 0;
  while ((count = std::fread(buffer.data(), 1, buffer.size(), file.get())) > 0) {
    add({buffer.data(), count});
  }
}

std::string Fingerprint::text() const { return fmt::format("{:016x}", hash_); }

std::string fingerprint(std::string_view text) {
  Fingerprint of_text;
  of_text.add(text);
  return of_text.text();
}

}  // namespace kvtier
