// Replays files, and those of folders, through a fuzz target: seeds and regressions are tests of
// every build, without libFuzzer. Also runs the mutations of each file, so that they are compiled
// and tried everywhere.
#include <algorithm>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "sim/core/file.hpp"

extern "C" {
int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);
std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t max_size,
                                    unsigned seed);
std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t max_size);
}

std::size_t LLVMFuzzerMutate(std::uint8_t*, std::size_t size, std::size_t) { return size; }

namespace {

namespace fs = std::filesystem;

constexpr unsigned kMutations = 5;

void replay(const fs::path& file) {
  const std::string text = kvtier::read_text_file(file);
  LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(text.data()), text.size());
  for (unsigned seed = 0; seed < kMutations; ++seed) {
    constexpr std::size_t kMore = 4096;
    std::vector<std::uint8_t> changed(text.begin(), text.end());
    changed.resize(text.size() + kMore);
    const std::size_t size =
        LLVMFuzzerCustomMutator(changed.data(), text.size(), changed.size(), seed);
    LLVMFuzzerTestOneInput(changed.data(), size);
  }
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<fs::path> files;
  for (int i = 1; i < argc; ++i) {
    if (!fs::is_directory(argv[i])) {
      files.emplace_back(argv[i]);
      continue;
    }
    for (const auto& entry : fs::directory_iterator(argv[i])) {
      files.push_back(entry.path());
    }
  }
  std::sort(files.begin(), files.end());
  for (const fs::path& file : files) {
    // An abort or a sanitizer's report does not say which input it is of.
    fmt::print("{}\n", file.string());
    std::fflush(stdout);
    try {
      replay(file);
    } catch (const std::exception& error) {
      fmt::print(stderr, "{}: undocumented error: {}\n", file.string(), error.what());
      return 1;
    }
  }
  if (files.empty()) {
    fmt::print(stderr, "no input\n");
    return 1;
  }
  fmt::print("{} inputs\n", files.size());
  return 0;
}
