#include "hw/device/storage.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "hw/device/processors.hpp"
#include "hw/device/uring_engine.hpp"
#include "sim/core/errors.hpp"
#include "sim/core/file.hpp"

namespace kvtier {
namespace {

[[noreturn]] void fail(const std::string& directory, const std::string& what) {
  throw DeviceError(fmt::format("{}: {}", directory, what));
}

std::string file_system_name(const struct statfs& system) {
  constexpr long kXfs = 0x58465342;
  constexpr long kOverlay = 0x794c7630;
  constexpr long kZfs = 0x2fc12fc1;
  switch (static_cast<unsigned long>(system.f_type)) {
    case EXT4_SUPER_MAGIC:
      return "ext4";
    case kXfs:
      return "xfs";
    case BTRFS_SUPER_MAGIC:
      return "btrfs";
    case kOverlay:
      return "overlay";
    case kZfs:
      return "zfs";
    case NFS_SUPER_MAGIC:
      return "nfs";
    default:
      return fmt::format("file system {:#x}", static_cast<unsigned long>(system.f_type));
  }
}

std::string first_line(const std::filesystem::path& path) {
  std::ifstream in(path);
  std::string line;
  std::getline(in, line);
  const std::size_t end = line.find_last_not_of(' ');
  return end == std::string::npos ? "" : line.substr(0, end + 1);
}

/// The kernel's name of the drive: "virtio drive", "Samsung SSD 990 PRO".
std::string drive_name(const std::string& block_device) {
  const std::filesystem::path folder(block_device);
  for (const char* model : {"device/model", "../device/model"}) {
    const std::string name = first_line(folder / model);
    if (!name.empty()) {
      return name;
    }
  }
  std::error_code none;
  const auto driver = std::filesystem::read_symlink(folder / "device/driver", none);
  return none ? "" : driver.filename().string();
}

class SystemCalls final : public FileCalls {
 public:
  explicit SystemCalls(int descriptor) : descriptor_(descriptor) {}
  std::int64_t read(std::byte* data, std::int64_t bytes, std::int64_t offset) override {
    return ::pread(descriptor_, data, static_cast<std::size_t>(bytes), offset);
  }
  std::int64_t write(const std::byte* data, std::int64_t bytes, std::int64_t offset) override {
    return ::pwrite(descriptor_, data, static_cast<std::size_t>(bytes), offset);
  }
  int sync() override { return ::fdatasync(descriptor_); }

 private:
  int descriptor_;
};

}  // namespace

ScratchFile::ScratchFile(const std::string& directory, Bytes size, Bytes spare)
    : size_((size.value + kStorageAlignment - 1) / kStorageAlignment * kStorageAlignment) {
  if (!is_folder(directory)) {
    throw ConfigError(fmt::format("{}: expected a folder on a drive", directory));
  }
  struct statfs system {};
  if (::statfs(directory.c_str(), &system) != 0) {
    fail(directory, fmt::format("statfs: {}", std::strerror(errno)));
  }
  if (system.f_type == TMPFS_MAGIC || system.f_type == RAMFS_MAGIC) {
    fail(directory, "is in memory (tmpfs): storage is measured in a folder on a drive");
  }
  const Bytes free(static_cast<std::int64_t>(system.f_bavail) *
                   static_cast<std::int64_t>(system.f_bsize));
  capacity_ =
      Bytes(static_cast<std::int64_t>(system.f_blocks) * static_cast<std::int64_t>(system.f_bsize));
  // The file is first opened without O_DIRECT, so that a refused flag and a refused file can be
  // told apart.
  std::string path = (std::filesystem::path(directory) / "kvtier-XXXXXX").string();
  descriptor_ = ::mkostemp(path.data(), O_CLOEXEC);
  if (descriptor_ < 0) {
    fail(directory, fmt::format("cannot write a test file: {}", std::strerror(errno)));
  }
  const int direct = ::open(path.c_str(), O_RDWR | O_DIRECT | O_CLOEXEC);
  const int error = errno;
  ::unlink(path.c_str());
  ::close(descriptor_);
  descriptor_ = direct;
  if (descriptor_ < 0) {
    fail(directory,
         fmt::format("its file system ({}) refuses O_DIRECT ({}): what is read would come from "
                     "memory; name a folder on a drive",
                     file_system_name(system), std::strerror(error)));
  }
  if (free < size_ + spare) {
    ::close(descriptor_);
    const auto gib = [](Bytes bytes) { return static_cast<double>(bytes.value) / (1 << 30); };
    fail(directory, fmt::format("{:.1f}GiB are free, the test file takes {:.1f}GiB and {:.1f}GiB "
                                "are to stay free",
                                gib(free), gib(size_), gib(spare)));
  }
  // Some file systems accept the flag and refuse the requests.
  alignas(kStorageAlignment) const std::array<std::byte, kStorageAlignment> block{};
  if (::pwrite(descriptor_, block.data(), block.size(), 0) != static_cast<ssize_t>(block.size())) {
    const int refused = errno;
    ::close(descriptor_);
    fail(directory, fmt::format("the first direct write failed: {}", std::strerror(refused)));
  }
  struct stat status {};
  if (::fstat(descriptor_, &status) == 0) {
    block_device_ = fmt::format("/sys/dev/block/{}:{}", gnu_dev_major(status.st_dev),
                                gnu_dev_minor(status.st_dev));
  }
  file_system_ = file_system_name(system);
  const std::string drive = drive_name(block_device_);
  if (!drive.empty()) {
    file_system_ += " on " + drive;
  }
}

ScratchFile::~ScratchFile() { ::close(descriptor_); }

std::int64_t ScratchFile::merged_requests() const {
  // Documentation/block/stat.rst: reads, read merges, sectors, ticks, writes, write merges, ...
  std::ifstream in(block_device_ + "/stat");
  std::int64_t fields[6] = {};
  for (std::int64_t& field : fields) {
    in >> field;
  }
  return in ? fields[1] + fields[5] : 0;
}

bool has_processors_for_polling() {
  constexpr int kEnough = 8;
  return available_processors() >= kEnough;
}

void write_whole(StorageEngine& engine, Bytes size,
                 const std::function<std::byte*(std::int64_t offset)>& data,
                 const std::function<void()>& check) {
  constexpr std::int64_t kBlock = std::int64_t{1} << 20;
  constexpr std::int64_t kInFlight = 8;
  for (std::int64_t at = 0; at < size.value || engine.in_flight() > 0;) {
    while (at < size.value && engine.in_flight() < kInFlight) {
      const IoRequest request{.kind = IoKind::write,
                              .offset = at,
                              .data = data(at),
                              .bytes = Bytes(std::min(kBlock, size.value - at))};
      engine.submit({&request, 1});
      at += request.bytes.value;
    }
    check();
    static_cast<void>(engine.wait());
  }
  engine.flush();
}

std::unique_ptr<StorageEngine> open_storage_engine(int descriptor, const StorageOptions& options) {
  std::string reason;
  if (options.kind != StorageEngineKind::threads) {
    auto engine = open_uring_engine(descriptor, options, reason);
    if (engine != nullptr) {
      return engine;
    }
    if (options.kind == StorageEngineKind::uring) {
      throw DeviceError(fmt::format("io_uring does not work here: {}", reason));
    }
  }
  std::string name = "threads (pread, pwrite)";
  if (!reason.empty()) {
    name += fmt::format("; io_uring does not work here: {}", reason);
  }
  return make_thread_engine(std::make_unique<SystemCalls>(descriptor), options.queue_depth, name);
}

}  // namespace kvtier
