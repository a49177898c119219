#include "traces/hash_names.hpp"

#include <algorithm>
#include <charconv>
#include <optional>
#include <system_error>
#include <utility>

namespace kvtier {
namespace {

/// The bits of a number in canonical form; nullopt for other texts.
std::optional<std::uint64_t> bits_of(std::string_view text) {
  const bool negative = text.starts_with('-');
  const std::string_view digits = text.substr(negative ? 1 : 0);
  if (digits.empty() || (digits.front() == '0' && (digits.size() > 1 || negative))) {
    return std::nullopt;
  }
  const char* const end = text.data() + text.size();
  std::uint64_t bits = 0;
  std::int64_t value = 0;
  const auto [stop, error] =
      negative ? std::from_chars(text.data(), end, value) : std::from_chars(text.data(), end, bits);
  if (error != std::errc() || stop != end) {
    return std::nullopt;
  }
  return negative ? static_cast<std::uint64_t>(value) : bits;
}

/// Mixes the bits, because hashes may be consecutive small numbers or differ only in their upper
/// bits.
std::uint64_t mixed(std::uint64_t bits) {
  bits ^= bits >> 32;
  bits *= 0x9e3779b97f4a7c15;
  return bits ^ (bits >> 29);
}

}  // namespace

HashNames::Slot& HashNames::slot_of(std::uint64_t bits) {
  const std::size_t mask = slots_.size() - 1;
  std::size_t at = mixed(bits) & mask;
  while (slots_[at].number >= 0 && slots_[at].bits != bits) {
    at = (at + 1) & mask;
  }
  return slots_[at];
}

void HashNames::grow() {
  constexpr std::size_t kFewest = 1024;
  std::vector<Slot> before = std::exchange(slots_, {});
  slots_.resize(std::max(kFewest, 2 * before.size()));
  for (const Slot& slot : before) {
    if (slot.number >= 0) {
      slot_of(slot.bits) = slot;
    }
  }
}

std::int64_t HashNames::number_of(std::string_view text, bool is_string) {
  const auto next = static_cast<std::int64_t>(used_slots_ + strings_.size());
  if (const auto bits = is_string ? std::nullopt : bits_of(text)) {
    is_signed_ = is_signed_ || text.starts_with('-');
    if (5 * used_slots_ >= 4 * slots_.size()) {
      grow();
    }
    Slot& slot = slot_of(*bits);
    if (slot.number < 0) {
      slot = {*bits, next};
      ++used_slots_;
    }
    return slot.number;
  }
  if (const auto found = strings_.find(text); found != strings_.end()) {
    return found->second;
  }
  strings_.emplace(text, next);
  return next;
}

std::string HashNames::text_of(std::int64_t number) const {
  for (const Slot& slot : slots_) {
    if (slot.number == number) {
      return is_signed_ ? std::to_string(static_cast<std::int64_t>(slot.bits))
                        : std::to_string(slot.bits);
    }
  }
  for (const auto& [text, known] : strings_) {
    if (known == number) {
      return text;
    }
  }
  return std::to_string(number);
}

}  // namespace kvtier
