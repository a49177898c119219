#include "sim/policy/entry_queues.hpp"

#include <gtest/gtest.h>

#include "sim/core/assert.hpp"

namespace kvtier {
namespace {

struct Uses {
  int count = 0;
};
using Queues = EntryQueues<Uses>;

EntryView view(std::uint32_t id, std::int64_t bytes = 10, std::uint64_t key = 0) {
  EntryView entry;
  entry.id = EntryId{id};
  entry.key = EntryKey{key == 0 ? id + 100 : key};
  entry.bytes = Bytes(bytes);
  return entry;
}

/// Inserts an entry and gives it a place.
void enter(Queues& queues, const EntryView& entry, std::size_t queue, std::uint64_t order) {
  queues.arrive(entry);
  queues.enter(entry.id, queue, order);
}

/// A tier in which all entries are offered but those withdrawn, and a policy that takes so many
/// from the front of a queue.
class Offers final : public VictimSet {
 public:
  Offers() {
    for (std::uint32_t i = 0; i < 4; ++i) {
      offer(EntryId{i}, Bytes(10));
    }
  }
  EntryId front(Queues& queues, std::size_t queue) {
    struct Front {
      void choose(const RoomRequest&, Victims& victims) {
        entry = Queues::Choice(queues, victims).front(queue);
      }
      Queues& queues;
      std::size_t queue;
      EntryId entry = kNoEntry;
    } front{queues, queue};
    static_cast<void>(choose(front, {}, Bytes(1)));
    return front.entry;
  }
  bool take(Queues& queues, Bytes wanted) {
    struct Take {
      void choose(const RoomRequest&, Victims& victims) {
        Queues::Choice choice(queues, victims);
        while (choice.wants_more() && choice.front(0).valid()) {
          choice.add(choice.front(0));
        }
      }
      Queues& queues;
    } take{queues};
    return choose(take, {}, wanted);
  }
  using VictimSet::choose;
};

TEST(EntryQueues, HaveTheSmallestOrderInFront) {
  Offers offers;
  Queues queues(2);
  EXPECT_EQ(offers.front(queues, 0), kNoEntry);
  enter(queues, view(0), 0, 30);
  enter(queues, view(1), 0, 10);
  enter(queues, view(2), 1, 5);
  EXPECT_EQ(offers.front(queues, 0), EntryId{1});
  EXPECT_EQ(offers.front(queues, 1), EntryId{2});
  queues.move(EntryId{1}, 1, 6);
  EXPECT_EQ(offers.front(queues, 0), EntryId{0});
  EXPECT_EQ(offers.front(queues, 1), EntryId{2});
  queues.move(EntryId{1}, 1, 4);
  EXPECT_EQ(offers.front(queues, 1), EntryId{1});
}

TEST(EntryQueues, CountTheBytesOfEach) {
  Queues queues(2);
  enter(queues, view(0, 10), 0, 1);
  enter(queues, view(1, 4), 1, 2);
  queues.resize(view(0, 13));
  EXPECT_EQ(queues.bytes(0), Bytes(13));
  EXPECT_EQ(queues.bytes(), Bytes(17));
  queues.move(EntryId{0}, 1, 3);
  EXPECT_EQ(queues.bytes(0), Bytes(0));
  EXPECT_EQ(queues.bytes(1), Bytes(17));
  queues.remove(EntryId{1});
  EXPECT_EQ(queues.bytes(1), Bytes(13));
}

TEST(EntryQueues, NeverHaveAnEntryInUseInFront) {
  Offers offers;
  Queues queues(2);
  enter(queues, view(0), 0, 1);
  enter(queues, view(1), 0, 2);
  queues.hit(EntryId{0});
  EXPECT_EQ(offers.front(queues, 0), EntryId{1});
  EXPECT_EQ(queues.bytes(0), Bytes(20));
  // It may be moved meanwhile, and is in front once it is released.
  queues.move(EntryId{0}, 1, 1);
  EXPECT_EQ(offers.front(queues, 1), kNoEntry);
  queues.release(view(0, 12));
  EXPECT_EQ(offers.front(queues, 1), EntryId{0});
  EXPECT_EQ(queues.bytes(1), Bytes(12));
}

TEST(EntryQueues, PassEntriesThatAreNotOffered) {
  Offers offers;
  Queues queues(1);
  enter(queues, view(0), 0, 1);
  enter(queues, view(1), 0, 2);
  offers.offer(EntryId{0}, Bytes(0));
  EXPECT_EQ(offers.front(queues, 0), EntryId{1});
  offers.offer(EntryId{0}, Bytes(10));
  EXPECT_EQ(offers.front(queues, 0), EntryId{0});
}

TEST(EntryQueues, ForgetEntriesThatHaveLeft) {
  Queues queues(1);
  enter(queues, view(0), 0, 1);
  queues.mark(EntryId{0}).count = 5;
  queues.remove(EntryId{0});
  enter(queues, view(0), 0, 2);
  EXPECT_EQ(queues.mark(EntryId{0}).count, 0);
}

TEST(EntryQueues, TellVictimsFromEntriesThatLeaveOtherwise) {
  Offers offers;
  Queues queues(1);
  enter(queues, view(0), 0, 1);
  EXPECT_FALSE(queues.remove(EntryId{0}));
  enter(queues, view(0), 0, 1);
  EXPECT_TRUE(offers.take(queues, Bytes(10)));
  EXPECT_EQ(queues.bytes(), Bytes(10));
  EXPECT_TRUE(queues.remove(EntryId{0}));
  EXPECT_EQ(queues.bytes(), Bytes(0));
  enter(queues, view(0), 0, 1);
  EXPECT_FALSE(queues.remove(EntryId{0}));
}

TEST(EntryQueues, TakeBackASetThatDoesNotLeave) {
  Offers offers;
  Queues queues(1);
  enter(queues, view(0), 0, 1);
  enter(queues, view(1), 0, 2);
  EXPECT_FALSE(offers.take(queues, Bytes(21)));
  EXPECT_EQ(queues.bytes(), Bytes(20));
  EXPECT_EQ(offers.front(queues, 0), EntryId{0});
  EXPECT_FALSE(queues.remove(EntryId{0}));
}

TEST(EntryQueues, TakeAnEntryOnce) {
  Queues queues(1);
  enter(queues, view(0), 0, 1);
  EXPECT_THROW(queues.arrive(view(0)), InvariantError);
}

}  // namespace
}  // namespace kvtier
