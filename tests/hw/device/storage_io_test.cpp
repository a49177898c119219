#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <random>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "hw/device/storage.hpp"
#include "sim/core/errors.hpp"

namespace kvtier {
namespace {

constexpr std::int64_t kBlock = kStorageAlignment;
constexpr Bytes kFile(std::int64_t{4} << 20);

/// Aligned memory.
class Memory {
 public:
  explicit Memory(std::int64_t bytes) : bytes_(static_cast<std::size_t>(bytes)) {
    data_ = static_cast<std::byte*>(
        ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  }
  ~Memory() { ::munmap(data_, bytes_); }
  [[nodiscard]] std::span<std::byte> span() const { return {data_, bytes_}; }
  [[nodiscard]] std::byte* at(std::int64_t offset) const { return data_ + offset; }

 private:
  std::size_t bytes_;
  std::byte* data_;
};

template <class Call>
std::string failure(const Call& call) {
  try {
    call();
    return "no failure";
  } catch (const DeviceError& error) {
    return error.what();
  }
}

/// A folder on a drive. Skips the test if the tests' folder is in memory.
class Storage : public testing::TestWithParam<StorageEngineKind> {
 protected:
  void SetUp() override {
    try {
      file_ = std::make_unique<ScratchFile>(testing::TempDir(), kFile);
    } catch (const DeviceError& error) {
      GTEST_SKIP() << error.what();
    }
    try {
      engine_ = open_storage_engine(
          file_->descriptor(), {.kind = GetParam(), .queue_depth = 8, .memory = memory_.span()});
    } catch (const DeviceError& error) {
      GTEST_SKIP() << error.what();
    }
  }
  void finish() {
    while (engine_->in_flight() > 0) {
      for (const IoCompletion& completion : engine_->wait()) {
        tags_.push_back(completion.tag);
      }
    }
  }

  Memory memory_{16 * kBlock};
  std::unique_ptr<ScratchFile> file_;
  std::unique_ptr<StorageEngine> engine_;
  std::vector<std::uint64_t> tags_;
};

TEST_P(Storage, ReadsBackItsWrites) {
  std::mt19937 engine(3);
  for (std::int64_t i = 0; i < 8 * kBlock; ++i) {
    *memory_.at(i) = static_cast<std::byte>(engine());
  }
  std::vector<IoRequest> requests;
  for (std::uint64_t i = 0; i < 8; ++i) {
    const auto block = static_cast<std::int64_t>(i);
    requests.push_back({.kind = IoKind::write,
                        .offset = (7 - block) * 5 * kBlock,
                        .data = memory_.at(block * kBlock),
                        .bytes = Bytes(kBlock),
                        .tag = 100 + i});
  }
  engine_->submit(requests);
  EXPECT_EQ(engine_->in_flight(), 8);
  finish();
  engine_->flush();
  std::ranges::sort(tags_);
  EXPECT_EQ(tags_, (std::vector<std::uint64_t>{100, 101, 102, 103, 104, 105, 106, 107}));
  for (IoRequest& request : requests) {
    request.kind = IoKind::read;
    request.data += 8 * kBlock;
  }
  engine_->submit(requests);
  finish();
  EXPECT_EQ(std::memcmp(memory_.at(0), memory_.at(8 * kBlock), 8 * kBlock), 0);
}

TEST_P(Storage, WaitsForAtLeastOneCompletion) {
  const IoRequest requests[] = {
      {.kind = IoKind::write, .data = memory_.at(0), .bytes = Bytes(kBlock), .tag = 3},
      {.kind = IoKind::write,
       .offset = kBlock,
       .data = memory_.at(0),
       .bytes = Bytes(kBlock),
       .tag = 4}};
  engine_->submit(requests);
  while (engine_->in_flight() > 0) {
    const std::vector<IoCompletion> completions = engine_->wait();
    EXPECT_FALSE(completions.empty());
    for (const IoCompletion& completion : completions) {
      tags_.push_back(completion.tag);
    }
  }
  EXPECT_TRUE(engine_->wait().empty());
  std::ranges::sort(tags_);
  EXPECT_EQ(tags_, (std::vector<std::uint64_t>{3, 4}));
}

TEST_P(Storage, ReportsAReadBeyondTheEndAndContinues) {
  const IoRequest good{
      .kind = IoKind::write, .offset = 0, .data = memory_.at(0), .bytes = Bytes(kBlock), .tag = 1};
  const IoRequest requests[] = {
      {.offset = kFile.value * 4, .data = memory_.at(0), .bytes = Bytes(kBlock)},
      {.offset = 0, .data = memory_.at(kBlock), .bytes = Bytes(kBlock)}};
  engine_->submit(requests);
  const std::string message = failure([&] { finish(); });
  EXPECT_NE(message.find("read: end of file at 16777216"), std::string::npos) << message;
  EXPECT_EQ(engine_->in_flight(), 0);
  engine_->submit({&good, 1});
  finish();
  EXPECT_EQ(tags_.back(), 1U);
}

TEST_P(Storage, ReportsTheErrorOfAMisalignedRequest) {
  const IoRequest bad{.offset = 0, .data = memory_.at(1), .bytes = Bytes(kBlock)};
  engine_->submit({&bad, 1});
  const std::string message = failure([&] { finish(); });
  if (message == "no failure") {
    GTEST_SKIP() << "this drive takes memory of any alignment";
  }
  EXPECT_NE(message.find("read: Invalid argument (-22)"), std::string::npos) << message;
}

INSTANTIATE_TEST_SUITE_P(Engines, Storage,
                         testing::Values(StorageEngineKind::uring, StorageEngineKind::threads),
                         [](const auto& engine) {
                           return engine.param == StorageEngineKind::uring ? "Uring" : "Threads";
                         });

TEST(StorageEngine, UsesPollingOnlyIfATestRequestWorks) {
  try {
    const ScratchFile file(testing::TempDir(), kFile);
    const Memory memory(kBlock);
    const auto engine = open_storage_engine(file.descriptor(), {.queue_depth = 4,
                                                                .memory = memory.span(),
                                                                .submission_polling = true,
                                                                .completion_polling = true});
    const IoRequest request{.data = memory.at(0), .bytes = Bytes(kBlock), .tag = 9};
    engine->submit({&request, 1});
    EXPECT_EQ(engine->wait().at(0).tag, 9U) << engine->name();
  } catch (const DeviceError& error) {
    GTEST_SKIP() << error.what();
  }
}

TEST(StorageEngine, NamesTheReasonForMissingIoUring) {
  const Memory memory(kBlock);
  const StorageOptions options{.memory = memory.span()};
  EXPECT_EQ(open_storage_engine(-1, {.kind = StorageEngineKind::threads})->name(),
            "threads (pread, pwrite)");
  const std::string name = open_storage_engine(-1, options)->name();
  EXPECT_TRUE(name.starts_with("threads (pread, pwrite); io_uring does not work here: ")) << name;
  const std::string message = failure([&] {
    (void)open_storage_engine(-1, {.kind = StorageEngineKind::uring, .memory = memory.span()});
  });
  EXPECT_TRUE(message.starts_with("io_uring does not work here: ")) << message;
}

TEST(ScratchFile, HasNoNameAndIsRemovedWithItsDescriptor) {
  const std::string folder = testing::TempDir() + "kvtier_scratch";
  std::filesystem::create_directory(folder);
  try {
    const ScratchFile file(folder, Bytes(5000));
    EXPECT_EQ(file.size(), Bytes(8192));
    EXPECT_FALSE(file.file_system().empty());
    EXPECT_GT(file.capacity(), Bytes(0));
    EXPECT_GE(file.merged_requests(), 0);
    EXPECT_TRUE(std::filesystem::is_empty(folder));
  } catch (const DeviceError& error) {
    std::filesystem::remove_all(folder);
    GTEST_SKIP() << error.what();
  }
  std::filesystem::remove_all(folder);
}

TEST(ScratchFile, RefusesAPathThatIsNoFolder) {
  try {
    const ScratchFile file("/nowhere/at/all", kFile);
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_STREQ(error.what(), "/nowhere/at/all: expected a folder on a drive");
  }
}

TEST(ScratchFile, RefusesMemory) {
  struct statfs system {};
  if (::statfs("/dev/shm", &system) != 0 || system.f_type != 0x01021994) {
    GTEST_SKIP() << "no tmpfs at /dev/shm";
  }
  EXPECT_EQ(failure([] { const ScratchFile file("/dev/shm", kFile); }),
            "/dev/shm: is in memory (tmpfs): storage is measured in a folder on a drive");
}

TEST(ScratchFile, RefusesAFolderThatCannotBeWritten) {
  const std::string message = failure([] { const ScratchFile file("/proc", kFile); });
  EXPECT_TRUE(message.starts_with("/proc: cannot write a test file: ")) << message;
}

TEST(ScratchFile, RefusesMoreThanIsFree) {
  const std::string folder = testing::TempDir();
  const std::string message = failure([&] {
    const ScratchFile file(folder, Bytes(std::int64_t{1} << 60), Bytes(std::int64_t{1} << 30));
  });
  if (message.find("tmpfs") != std::string::npos) {
    GTEST_SKIP() << message;
  }
  EXPECT_TRUE(message.ends_with(
      "GiB are free, the test file takes 1073741824.0GiB and 1.0GiB are to stay free"))
      << message;
}

}  // namespace
}  // namespace kvtier
