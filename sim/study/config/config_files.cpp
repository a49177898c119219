#include "sim/study/config/config_files.hpp"

#include "hw/profile/profile_hardware.hpp"
#include "sim/study/config/resolve.hpp"

namespace kvtier {
namespace {

/// The entry of `path`, made by `read` at its first use.
template <class Entries, class Read>
const auto& entry_of(Entries& entries, const std::filesystem::path& path, const Read& read) {
  const auto [found, is_new] = entries.try_emplace(path);
  auto& entry = found->second;
  if (is_new) {
    try {
      entry.content = read(path);
    } catch (...) {
      entry.error = std::current_exception();
    }
  }
  if (entry.error) {
    std::rethrow_exception(entry.error);
  }
  return entry.content;
}

}  // namespace

const Json& ConfigFiles::json(const std::filesystem::path& path) {
  const std::lock_guard lock(mutex_);
  return entry_of(json_, path, read_json_file);
}

std::shared_ptr<const Profile> ConfigFiles::profile(const std::filesystem::path& path) {
  const std::lock_guard lock(mutex_);
  return entry_of(profiles_, path, [](const std::filesystem::path& file) {
    return std::make_shared<const Profile>(read_profile(file));
  });
}

std::shared_ptr<const Profile> ConfigFiles::overlaid(const std::shared_ptr<const Profile>& own,
                                                     const std::shared_ptr<const Profile>& rest) {
  const std::lock_guard lock(mutex_);
  std::shared_ptr<const Profile>& both = overlaid_[{own.get(), rest.get()}];
  if (!both) {
    both = std::make_shared<const Profile>(overlay(*own, *rest));
  }
  return both;
}

const Json& ConfigFiles::hardware(const Profile& profile, std::optional<Bytes> piece, bool whole) {
  const std::lock_guard lock(mutex_);
  const HardwareKey key(&profile, piece, whole);
  const auto known = hardware_.find(key);
  if (known != hardware_.end()) {
    return known->second;
  }
  return hardware_
      .emplace(key, whole ? described_hardware(profile, piece) : measured_hardware(profile, piece))
      .first->second;
}

}  // namespace kvtier
