#include "hw/device/host_memory.hpp"

#include <cstdint>
#include <fstream>
#include <string>

namespace kvtier {
namespace {

Bytes meminfo(const std::string& key) {
  std::ifstream in("/proc/meminfo");
  constexpr std::int64_t kKibibyte = 1024;
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with(key + ":")) {
      return Bytes(std::stoll(line.substr(key.size() + 1)) * kKibibyte);
    }
  }
  return {};
}

}  // namespace

Bytes host_memory() { return meminfo("MemTotal"); }
Bytes available_host_memory() { return meminfo("MemAvailable"); }

}  // namespace kvtier
