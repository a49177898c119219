/// The thread engine over system calls that fail in every way a drive can.

#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <functional>

#include <gtest/gtest.h>

#include "hw/device/storage.hpp"
#include "sim/core/assert.hpp"
#include "sim/core/errors.hpp"

namespace kvtier {
namespace {

using Transfer = std::function<std::int64_t(std::int64_t bytes, std::int64_t offset)>;

struct FakeCalls final : FileCalls {
  explicit FakeCalls(Transfer t) : transfer(std::move(t)) {}
  std::int64_t read(std::byte* data, std::int64_t bytes, std::int64_t offset) override {
    const std::int64_t done = transfer(bytes, offset);
    if (done > 0) {
      std::memset(data, static_cast<int>(offset), static_cast<std::size_t>(done));
    }
    return done;
  }
  std::int64_t write(const std::byte*, std::int64_t bytes, std::int64_t offset) override {
    return transfer(bytes, offset);
  }
  int sync() override {
    errno = EIO;
    return -1;
  }
  Transfer transfer;
};

std::unique_ptr<StorageEngine> engine_with(Transfer transfer) {
  return make_thread_engine(std::make_unique<FakeCalls>(std::move(transfer)), 4, "fake");
}

std::int64_t fails_with(int error) {
  errno = error;
  return -1;
}

std::string failure(StorageEngine& engine) {
  try {
    while (engine.in_flight() > 0) {
      engine.wait();
    }
    return "no failure";
  } catch (const DeviceError& error) {
    return error.what();
  }
}

std::array<std::byte, 16> memory;

IoRequest request(IoKind kind, std::int64_t offset = 0) {
  return {.kind = kind, .offset = offset, .data = memory.data(), .bytes = Bytes(16), .tag = 5};
}

// 16 bytes in parts of 10, 5 and 1: three calls, each at the place where the last one ended.
TEST(ThreadEngine, ContinuesPartialTransfers) {
  std::vector<std::int64_t> offsets;
  const auto engine = engine_with([&](std::int64_t bytes, std::int64_t offset) {
    offsets.push_back(offset);
    return offset == 100 ? 10 : offset == 110 ? 5 : bytes;
  });
  const IoRequest read = request(IoKind::read, 100);
  engine->submit({&read, 1});
  EXPECT_EQ(engine->wait().at(0).tag, 5U);
  EXPECT_EQ(offsets, (std::vector<std::int64_t>{100, 110, 115}));
  EXPECT_EQ(memory[9], std::byte{100});
  EXPECT_EQ(memory[10], std::byte{110});
  EXPECT_EQ(memory[15], std::byte{115});
}

TEST(ThreadEngine, TriesAgainAfterASignal) {
  std::atomic<int> calls = 0;
  const auto engine = engine_with(
      [&](std::int64_t bytes, std::int64_t) { return ++calls == 1 ? fails_with(EINTR) : bytes; });
  const IoRequest read = request(IoKind::read);
  engine->submit({&read, 1});
  EXPECT_EQ(engine->wait().size(), 1U);
  EXPECT_EQ(calls, 2);
}

TEST(ThreadEngine, ReportsAFullDriveOnceAllRequestsHaveEnded) {
  const auto engine = engine_with([](std::int64_t bytes, std::int64_t offset) {
    return offset == 32 ? fails_with(ENOSPC) : bytes;
  });
  const IoRequest writes[] = {request(IoKind::write, 0), request(IoKind::write, 16),
                              request(IoKind::write, 32), request(IoKind::write, 48)};
  engine->submit(writes);
  EXPECT_EQ(failure(*engine), "pwrite: No space left on device (-28)");
  EXPECT_EQ(engine->in_flight(), 0);
  engine->submit({writes, 1});
  EXPECT_EQ(engine->wait().size(), 1U);
}

TEST(ThreadEngine, ReportsTheEndOfTheFile) {
  const auto engine = engine_with(
      [](std::int64_t, std::int64_t offset) -> std::int64_t { return offset == 64 ? 4 : 0; });
  const IoRequest read = request(IoKind::read, 64);
  engine->submit({&read, 1});
  EXPECT_EQ(failure(*engine), "pread: end of file at 68");
}

TEST(ThreadEngine, ReportsAFailedFlush) {
  const auto engine = engine_with([](std::int64_t bytes, std::int64_t) { return bytes; });
  try {
    engine->flush();
    FAIL();
  } catch (const DeviceError& error) {
    EXPECT_STREQ(error.what(), "fdatasync: Input/output error");
  }
}

TEST(ThreadEngine, RefusesMoreThanItsQueueHolds) {
  const auto engine = engine_with([](std::int64_t bytes, std::int64_t) { return bytes; });
  const std::vector<IoRequest> five(5, request(IoKind::read));
  EXPECT_THROW(engine->submit(five), InvariantError);
}

}  // namespace
}  // namespace kvtier
