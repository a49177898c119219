#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "sim/core/streams.hpp"
#include "sim/store/rules.hpp"

namespace kvtier {

/// Blocks [begin, end) of a stream, which come or leave one by one from the end `first`.
struct BlockRun {
  StreamId stream;
  std::int64_t begin = 0;
  std::int64_t end = 0;
  End first = End::tail;

  [[nodiscard]] std::int64_t size() const { return end - begin; }
  [[nodiscard]] Stretch stretch() const { return {stream, begin, end}; }
};

/// Blocks that are alike in a pool: present, all in one segment, or absent. A segment is an extent
/// of ExtentPool.
struct Piece {
  bool present = false;
  std::uint32_t segment = UINT32_MAX;
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

/// Visits the stretches of a path from its head, or its tail.
template <class Visit>
void walk(const std::vector<Stretch>& path, End first, Visit visit) {
  const std::size_t count = path.size();
  for (std::size_t i = 0; i < count; ++i) {
    const Stretch& stretch = path[first == End::tail ? count - 1 - i : i];
    visit(BlockRun{stretch.stream, stretch.begin, stretch.end, first});
  }
}

/// Visits the pieces of a run in a pool, which are looked up as they are reached.
template <class Pool, class Visit>
void for_each_piece(const Pool& pool, const BlockRun& run, Visit visit) {
  std::int64_t begin = run.begin;
  std::int64_t end = run.end;
  while (begin < end) {
    if (run.first == End::tail) {
      const Piece piece = pool.last_piece(run.stream, begin, end);
      end = piece.begin;
      visit(piece);
    } else {
      const Piece piece = pool.first_piece(run.stream, begin, end);
      begin = piece.end;
      visit(piece);
    }
  }
}

/// Adds what is left of a run when blocks are cut out of its stream, with the new numbers of those
/// behind, and visits what leaves.
template <class Visit>
void leave_cut(const BlockRun& run, const Stretch& cut, std::vector<BlockRun>& left, Visit visit) {
  if (run.stream != cut.stream) {
    left.push_back(run);
    return;
  }
  const BlockRun before{run.stream, run.begin, std::min(run.end, cut.begin), run.first};
  const BlockRun gone{run.stream, std::max(run.begin, cut.begin), std::min(run.end, cut.end),
                      run.first};
  const std::int64_t size = cut.end - cut.begin;
  const BlockRun behind{run.stream, std::max(run.begin, cut.end) - size, run.end - size, run.first};
  for (const BlockRun& part : {before, behind}) {
    if (part.size() > 0) {
      left.push_back(part);
    }
  }
  if (gone.size() > 0) {
    visit(gone);
  }
}
/// The same for all of some stretches.
inline void leave_cut(std::vector<Stretch>& stretches, const Stretch& cut) {
  std::vector<BlockRun> left;
  for (const Stretch& stretch : stretches) {
    leave_cut({stretch.stream, stretch.begin, stretch.end, End::head}, cut, left,
              [](const BlockRun&) {});
  }
  stretches.clear();
  for (const BlockRun& run : left) {
    stretches.push_back(run.stretch());
  }
}

}  // namespace kvtier
