/// No tracked file names the host of a package registry: packages come from wherever the machine's
/// package clients are set up to find them.

#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

namespace kvtier {
namespace {

namespace fs = std::filesystem;

/// Names and domains apart, so that this file names none of them.
constexpr std::array<std::array<const char*, 2>, 12> kHosts{{{"pypi", "org"},
                                                             {"pythonhosted", "org"},
                                                             {"deb.debian", "org"},
                                                             {"archive.ubuntu", "com"},
                                                             {"registry.npmjs", "org"},
                                                             {"crates", "io"},
                                                             {"proxy.golang", "org"},
                                                             {"anaconda", "org"},
                                                             {"rubygems", "org"},
                                                             {"repo.maven.apache", "org"},
                                                             {"repo1.maven", "org"},
                                                             {"packagist", "org"}}};

/// The first host that a text names; empty if it names none.
std::string host_in(std::string_view text) {
  for (const auto& [name, domain] : kHosts) {
    const std::string host = std::string(name) + "." + domain;
    if (text.find(host) != std::string_view::npos) {
      return host;
    }
  }
  return "";
}

/// Paths from the root of the repository; none without git.
std::vector<std::string> tracked_files() {
  const std::string command = std::string("git -c safe.directory='*' -C '") + KVTIER_SOURCE_DIR +
                              "' ls-files -z 2>/dev/null";
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> pipe(::popen(command.c_str(), "r"),
                                                             ::pclose);
  std::vector<std::string> files;
  std::string file;
  for (int c = 0; pipe && (c = std::fgetc(pipe.get())) != EOF;) {
    if (c == '\0') {
      files.push_back(std::move(file));
      file.clear();
    } else {
      file += static_cast<char>(c);
    }
  }
  return files;
}

TEST(Hosts, AreFoundInText) {
  EXPECT_EQ(host_in("https://" + std::string("pypi") + ".org/simple"),
            "pypi" + std::string(".org"));
  EXPECT_EQ(host_in("PyPI, organised"), "");
}

TEST(Hosts, OfPackageRegistriesAreNamedInNoTrackedFile) {
  const std::vector<std::string> files = tracked_files();
  if (files.empty()) {
    GTEST_SKIP() << "git lists no files here: this is no clone, or git is not installed";
  }
  std::size_t read = 0;
  for (const std::string& file : files) {
    std::ifstream in(fs::path(KVTIER_SOURCE_DIR) / file, std::ios::binary);
    const std::string text{std::istreambuf_iterator<char>(in), {}};
    read += text.empty() ? 0 : 1;
    EXPECT_EQ(host_in(text), "") << file;
  }
  EXPECT_GE(read, 100U) << "a check that reads nothing finds nothing";
}

}  // namespace
}  // namespace kvtier
