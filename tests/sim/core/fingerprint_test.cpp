/// The hash of inputs, against FNV-1a's published constants.

#include "sim/core/fingerprint.hpp"

#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace kvtier::test {
namespace {

std::string fingerprint_of(const std::vector<std::string>& texts) {
  Fingerprint fingerprint;
  for (const std::string& text : texts) {
    fingerprint.add(text);
  }
  return fingerprint.text();
}

// Without texts it is FNV's offset basis. "a" is the bytes 61 and 00: the published FNV-1a of "a"
// is af63dc4c8601ec8c, and a zero byte multiplies it by the prime 100000001b3 (modulo 2^64).
TEST(Fingerprint, IsFnv1aOfTheTextsEachEndedByAZero) {
  EXPECT_EQ(fingerprint_of({}), "cbf29ce484222325");
  EXPECT_EQ(fingerprint_of({"a"}), "089be207b544f1e4");
}

TEST(Fingerprint, TellsWhereOneTextEnds) {
  EXPECT_NE(fingerprint_of({"ab", "c"}), fingerprint_of({"a", "bc"}));
  EXPECT_NE(fingerprint_of({"a"}), fingerprint_of({"a", ""}));
}

}  // namespace
}  // namespace kvtier::test
