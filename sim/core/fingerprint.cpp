#include "sim/core/fingerprint.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <memory>
#include <system_error>
#include <vector>

#include <fmt/format.h>

namespace kvtier {

void Fingerprint::add(std::string_view text) {
  for (const char c : text) {
    step(static_cast<unsigned char>(c));
  }
  step(0);  // so that "ab", "c" is not "a", "bc"
}

void Fingerprint::add_file(const std::filesystem::path& path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) {
    std::vector<std::filesystem::path> inside;
    for (const auto& entry : std::filesystem::directory_iterator(path, ignored)) {
      inside.push_back(entry.path());
    }
    std::sort(inside.begin(), inside.end());
    for (const std::filesystem::path& file : inside) {
      add(file.filename().string());
      add_file(file);
    }
    return;
  }
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(
      std::filesystem::is_regular_file(path, ignored) ? std::fopen(path.c_str(), "rb") : nullptr,
      &std::fclose);
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
