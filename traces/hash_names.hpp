#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace kvtier {

/// Dense numbers, from 0, for the hashes of blocks, which are whole numbers or strings. Holds 20 to
/// 40 bytes per number, and about 60 bytes and the text per string.
///
/// Servers print a hash of 64 bits with or without a sign, so a negative number is the same hash as
/// the unsigned number of the same bits. A longer number, or one with leading zeros, counts as a
/// string.
class HashNames {
 public:
  /// The number of a hash. `is_string`: the hash is quoted, so `text` is never a number.
  std::int64_t number_of(std::string_view text, bool is_string);
  /// The hash that has this number, for errors; takes time linear in the hashes.
  [[nodiscard]] std::string text_of(std::int64_t number) const;

 private:
  struct Hasher {
    using is_transparent = void;
    std::size_t operator()(std::string_view text) const {
      return std::hash<std::string_view>()(text);
    }
  };
  /// Slot of an open-addressed table. With std::unordered_map, look-ups take several times longer,
  /// and most of the time of reading a trace.
  struct Slot {
    std::uint64_t bits = 0;
    /// Negative: the slot is free.
    std::int64_t number = -1;
  };
  /// The slot of the hash, or the free slot for it.
  [[nodiscard]] Slot& slot_of(std::uint64_t bits);
  void grow();

  std::vector<Slot> slots_;
  std::size_t used_slots_ = 0;
  std::unordered_map<std::string, std::int64_t, Hasher, std::equal_to<>> strings_;
  bool is_signed_ = false;
};

}  // namespace kvtier
