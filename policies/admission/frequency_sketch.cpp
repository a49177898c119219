// A frequency sketch counts the uses of all sessions in a few small counters each. In a full tier,
// a newcomer must have more uses than the victim that it would replace. All counters are halved
// from time to time, so that the past fades. Einziger, Friedman and Manes, TinyLFU: A Highly
// Efficient Cache Admission Policy, 2017. Adapted: turns are uses, the newcomer is compared with
// each victim whatever their sizes, and there is no doorkeeper before the sketch. O(1) per
// decision, amortised.
//
// Counters are halved after ten uses per counter of a row. The paper has about ten per entry that
// fits, but sessions end. An ended session keeps its place against newer ones until its count is
// halved. So the sketch must cover about the length of a session. With 256 counters (2,560 turns),
// a DRAM of 128 GiB (about a hundred sessions) has less than half the hits of a tier without
// filter.
#include "policies/admission/frequency_sketch.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <vector>

#include "sim/core/rng.hpp"
#include "sim/policy/parameters.hpp"

namespace kvtier {
namespace {

constexpr const char* kCounters = "counters";
constexpr double kDefaultCounters = 32;

class FrequencySketchAdmission final : public AdmissionPolicy {
 public:
  explicit FrequencySketchAdmission(std::uint64_t counters) : mask_(std::bit_ceil(counters) - 1) {
    rows_.fill(std::vector<std::uint8_t>(mask_ + 1));
  }

  void on_use(EntryKey key) override {
    const std::uint8_t least = count(key);
    if (least < kMost) {
      for (std::uint64_t row = 0; row < rows_.size(); ++row) {
        std::uint8_t& counter = rows_[row][place(row, key)];
        counter = std::max(counter, static_cast<std::uint8_t>(least + 1));
      }
    }
    if (++uses_ == kUsesPerCounter * (mask_ + 1)) {
      uses_ = 0;
      for (std::vector<std::uint8_t>& row : rows_) {
        std::ranges::transform(row, row.begin(),
                               [](std::uint8_t c) { return static_cast<std::uint8_t>(c / 2); });
      }
    }
  }
  [[nodiscard]] bool admits(EntryKey) const override { return true; }
  [[nodiscard]] bool replaces(EntryKey newcomer, EntryKey victim) const override {
    return count(newcomer) > count(victim);
  }

 private:
  /// The largest count: four bits, as in the paper.
  static constexpr std::uint8_t kMost = 15;
  static constexpr std::uint64_t kUsesPerCounter = 10;

  [[nodiscard]] std::size_t place(std::uint64_t row, EntryKey key) const {
    return random_bits_at(row, key.value) & mask_;
  }
  [[nodiscard]] std::uint8_t count(EntryKey key) const {
    std::uint8_t least = kMost;
    for (std::uint64_t row = 0; row < rows_.size(); ++row) {
      least = std::min(least, rows_[row][place(row, key)]);
    }
    return least;
  }

  std::uint64_t mask_;
  std::array<std::vector<std::uint8_t>, 4> rows_;
  std::uint64_t uses_ = 0;
};

}  // namespace

PolicyKind<AdmissionPolicy> frequency_sketch_admission() {
  return {.name = "frequency_sketch",
          .summary = "a newcomer must have more uses than its victim, by a sketch of counters",
          .source = "TinyLFU: Einziger, Friedman, Manes (ACM Transactions on Storage, 2017)",
          .knowledge = Knowledge::online,
          .parameters = {{.name = kCounters,
                          .documentation = "counters in each of four rows, rounded up to a power "
                                           "of 2; all are halved after ten uses per counter",
                          .unit = "counters",
                          .minimum = 1,
                          .maximum = 1 << 28,
                          .default_value = kDefaultCounters}},
          .make = [](const PolicyParameters& parameters) -> std::unique_ptr<AdmissionPolicy> {
            return std::make_unique<FrequencySketchAdmission>(
                static_cast<std::uint64_t>(parameter_or(parameters, kCounters, kDefaultCounters)));
          }};
}

}  // namespace kvtier
