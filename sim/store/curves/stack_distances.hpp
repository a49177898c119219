#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace kvtier {

/// Mattson's LRU stack (IBM Systems Journal 9(2), 1970) of entries with sizes, in bytes or blocks:
/// the size of all that was used since an entry's last use, itself included, is the capacity from
/// which on LRU still has it. Sums over a Fenwick tree: O(log n). Entries of users who will not
/// come back are joined, so memory follows those who may.
class StackDistances {
 public:
  /// Users are dense numbers. Zero: the user has no entry.
  [[nodiscard]] std::int64_t distance(std::uint32_t user) const {
    return has(user) ? total_ - sum_before(place_of_[user]) : 0;
  }
  /// Size of the user's own entry.
  [[nodiscard]] std::int64_t size(std::uint32_t user) const {
    return has(user) ? places_[place_of_[user]].size : 0;
  }
  /// The user's entry has this size now and is the latest used.
  void use(std::uint32_t user, std::int64_t size) {
    drop(user);
    if (places_.size() == used_) {
      make_room();
    }
    if (user >= place_of_.size()) {
      place_of_.resize(static_cast<std::size_t>(user) + 1, kNone);
    }
    place_of_[user] = static_cast<std::uint32_t>(used_);
    places_[used_] = {user, size};
    add(used_, size);
    ++used_;
  }
  /// The user's entry has become smaller, and is not used.
  void shrink(std::uint32_t user, std::int64_t size) {
    Place& place = places_[place_of_[user]];
    add(place_of_[user], size - place.size);
    place.size = size;
  }
  /// Its entry is gone.
  void drop(std::uint32_t user) {
    if (has(user)) {
      Place& place = places_[place_of_[user]];
      add(place_of_[user], -place.size);
      place = {};
      place_of_[user] = kNone;
    }
  }
  /// The user will not come back: the entry stays, the number is free for another user.
  void forget(std::uint32_t user) {
    if (has(user)) {
      places_[place_of_[user]].user = kNone;
      place_of_[user] = kNone;
    }
  }
  [[nodiscard]] std::size_t places() const { return places_.size(); }

 private:
  static constexpr std::uint32_t kNone = UINT32_MAX;
  static constexpr std::size_t kFewestPlaces = 1024;
  struct Place {
    std::uint32_t user = kNone;
    std::int64_t size = 0;
  };

  [[nodiscard]] bool has(std::uint32_t user) const {
    return user < place_of_.size() && place_of_[user] != kNone;
  }
  void add(std::size_t at, std::int64_t size) {
    total_ += size;
    for (std::size_t i = at + 1; i <= places_.size(); i += i & (~i + 1)) {
      sums_[i] += size;
    }
  }
  [[nodiscard]] std::int64_t sum_before(std::size_t at) const {
    std::int64_t sum = 0;
    for (std::size_t i = at; i > 0; i -= i & (~i + 1)) {
      sum += sums_[i];
    }
    return sum;
  }

  /// Closes up what is left, and takes twice that many places.
  void make_room() {
    std::vector<Place> kept;
    for (const Place& place : places_) {
      if (place.user == kNone && !kept.empty() && kept.back().user == kNone) {
        kept.back().size += place.size;
      } else if (place.user != kNone || place.size != 0) {
        kept.push_back(place);
      }
    }
    used_ = kept.size();
    places_ = std::move(kept);
    places_.resize(std::max(kFewestPlaces, 2 * used_));
    sums_.assign(places_.size() + 1, 0);
    total_ = 0;
    for (std::size_t i = 0; i < used_; ++i) {
      add(i, places_[i].size);
      if (places_[i].user != kNone) {
        place_of_[places_[i].user] = static_cast<std::uint32_t>(i);
      }
    }
  }

  /// In order of use, with holes.
  std::vector<Place> places_;
  std::size_t used_ = 0;
  std::vector<std::int64_t> sums_;
  std::int64_t total_ = 0;
  std::vector<std::uint32_t> place_of_;
};

}  // namespace kvtier
