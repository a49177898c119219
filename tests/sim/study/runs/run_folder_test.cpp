/// Folders of results: the lines that a damaged folder still gives, and the reports of its damage.

#include "sim/study/runs/run_folder.hpp"

#include <algorithm>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "sim/core/fingerprint.hpp"
#include "tests/sim/study/support.hpp"

namespace kvtier::test {
namespace {

using Lines = std::vector<std::string>;

TEST(SealedLine, GivesBackItsContent) {
  const Json line{{"point", 3}, {"metrics", {{"a", 0.1}, {"b", Json()}, {"c", "x\"}\n"}}}};
  const std::string text = sealed_line(line);
  EXPECT_EQ(text.find('\n'), std::string::npos);
  ASSERT_TRUE(unsealed_line(text));
  EXPECT_EQ(*unsealed_line(text), line);
  EXPECT_EQ(sealed_line(*unsealed_line(text)), text);
  // A line that is sealed again has one checksum.
  EXPECT_EQ(sealed_line(Json::parse(text)), text);
}

TEST(SealedLine, RefusesLinesThatItDidNotWrite) {
  for (const std::string& text :
       {std::string(), std::string("{}"), std::string(R"({"point":1})"),
        std::string(R"({"point":1,"checksum":"0000000000000000"})"),
        // Sealed by hand: no JSON, a key twice, and too many levels.
        R"({"point":,"checksum":")" + fingerprint(R"({"point":})") + "\"}",
        R"({"a":1,"a":2,"checksum":")" + fingerprint(R"({"a":1,"a":2})") + "\"}",
        "{\"a\":" + std::string(80'000, '[') + std::string(80'000, ']') + ",\"checksum\":\"" +
            fingerprint("{\"a\":" + std::string(80'000, '[') + std::string(80'000, ']') + "}") +
            "\"}"}) {
    EXPECT_FALSE(unsealed_line(text)) << text.substr(0, 100);
  }
}

class Folder : public testing::Test {
 protected:
  Folder() {
    for (int i = 0; i < 5; ++i) {
      lines_.push_back(sealed_line({{"point", i}, {"metrics", {{"turns", 10 * i}}}}));
    }
    std::filesystem::create_directory(dir_.path("out"));
    dir_.write("out/sweep.json", identity_.dump());
  }

  [[nodiscard]] static std::string together(const Lines& lines) {
    std::string text;
    for (const std::string& line : lines) {
      text += line + "\n";
    }
    return text;
  }
  /// The lines kept of a state file with this text; `told_` says whether anything was told.
  [[nodiscard]] Lines kept_of(const std::string& text) {
    dir_.write("out/results.jsonl.partial", text);
    told_.clear();
    RunFolder folder(kSweepFolder, dir_.path("out"), identity_, true,
                     [&](const std::string& message) { told_.push_back(message); });
    return folder.take_kept();
  }
  /// Whether `kept` are some of the folder's lines, in their order.
  [[nodiscard]] bool are_ours(const Lines& kept) const {
    auto at = lines_.begin();
    return std::all_of(kept.begin(), kept.end(), [&](const std::string& line) {
      at = std::find(at, lines_.end(), line);
      return at != lines_.end() && at++ != lines_.end();
    });
  }

  const Json identity_{{"format", "kvtier.sweep/1"}};
  TempDir dir_;
  Lines lines_;
  Lines told_;
};

TEST_F(Folder, KeepsIntactLines) {
  EXPECT_EQ(kept_of(together(lines_)), lines_);
  EXPECT_EQ(told_, Lines{});
  EXPECT_EQ(kept_of(""), Lines{});
  EXPECT_EQ(told_, Lines{});
}

TEST_F(Folder, NamesDamagedLines) {
  Lines damaged = lines_;
  damaged[1].replace(damaged[1].find("turns"), 5, "turn_");
  damaged[3] = "null";
  EXPECT_EQ(kept_of(together(damaged)), (Lines{lines_[0], lines_[2], lines_[4]}));
  ASSERT_EQ(told_.size(), 1U);
  EXPECT_TRUE(told_[0].ends_with(
      "results.jsonl.partial: no whole line of a run: 2, 4; their runs are made again"))
      << told_[0];
  EXPECT_EQ(kept_of(together(Lines(40, "x"))), Lines{});
  EXPECT_TRUE(
      told_[0].ends_with(": 1, 2, 3, 4, 5, 6, 7, 8, 9, 10 and 30 more; their runs are made "
                         "again"))
      << told_[0];
}

/// Each byte is changed, lost, doubled, or made the end of a line or of the file. Only unchanged
/// lines are kept, all lines away from that byte are kept, and losses are reported.
TEST_F(Folder, KeepsAllLinesButTheOneWithADamagedByte) {
  const std::string whole = together(lines_);
  using Damage = std::function<std::string(std::size_t)>;
  const auto changed = [&](std::size_t at, char c) {
    std::string text = whole;
    text[at] = c;
    return text;
  };
  const std::vector<Damage> damages{
      [&](std::size_t at) { return changed(at, static_cast<char>(whole[at] ^ 1)); },
      [&](std::size_t at) { return changed(at, static_cast<char>(whole[at] ^ 0x80)); },
      [&](std::size_t at) { return changed(at, '\0'); },
      [&](std::size_t at) { return changed(at, '\n'); },
      [&](std::size_t at) { return whole.substr(0, at) + whole.substr(at + 1); },
      [&](std::size_t at) { return whole.substr(0, at) + whole[at] + whole.substr(at); },
      [&](std::size_t at) { return whole.substr(0, at) + "\n" + whole.substr(at); },
  };
  for (std::size_t at = 0; at < whole.size(); ++at) {
    for (std::size_t d = 0; d < damages.size(); ++d) {
      const std::string text = damages[d](at);
      const Lines kept = kept_of(text);
      ASSERT_TRUE(are_ours(kept)) << d << " at " << at;
      ASSERT_GE(kept.size() + 2, lines_.size()) << d << " at " << at;
      ASSERT_EQ(told_.empty(), text == whole) << d << " at " << at;
    }
    const Lines kept = kept_of(whole.substr(0, at));
    ASSERT_TRUE(are_ours(kept)) << at;
    ASSERT_EQ(kept.size(),
              static_cast<std::size_t>(std::count(whole.begin(), whole.begin() + at, '\n')));
    ASSERT_EQ(told_.empty(), at == 0 || whole[at - 1] == '\n') << at;
  }
}

}  // namespace
}  // namespace kvtier::test
