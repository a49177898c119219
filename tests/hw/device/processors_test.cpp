#include "hw/device/processors.hpp"

#include <thread>

#include <gtest/gtest.h>

namespace kvtier {
namespace {

TEST(AvailableProcessors, AreThoseOfTheAffinityMask) {
  const int before = available_processors();
  EXPECT_EQ(before, static_cast<int>(processors_of_thread().size()));
  int pinned = 0;
  std::thread([&] {
    stay_on({processors_of_thread().front()});
    pinned = available_processors();
  }).join();
  EXPECT_EQ(pinned, 1);
  EXPECT_EQ(available_processors(), before);
}

}  // namespace
}  // namespace kvtier
