#pragma once

#include <exception>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <tuple>

#include "hw/profile/profile.hpp"
#include "sim/core/config.hpp"
#include "sim/core/units.hpp"

namespace kvtier {

/// The files of configs, each read and parsed once. Later changes of a file are not seen. An error
/// is kept, too, and thrown again. Thread-safe. References last as long as this object.
class ConfigFiles {
 public:
  /// As read_json_file().
  [[nodiscard]] const Json& json(const std::filesystem::path& path);
  /// As read_profile().
  [[nodiscard]] std::shared_ptr<const Profile> profile(const std::filesystem::path& path);

  /// overlay() of two profiles of these files.
  [[nodiscard]] std::shared_ptr<const Profile> overlaid(const std::shared_ptr<const Profile>& own,
                                                        const std::shared_ptr<const Profile>& rest);

  /// measured_hardware() of a profile of these files, or described_hardware() for a `whole` server.
  [[nodiscard]] const Json& hardware(const Profile& profile, std::optional<Bytes> piece,
                                     bool whole);

 private:
  template <class T>
  struct Read {
    T content{};
    std::exception_ptr error;
  };
  using HardwareKey = std::tuple<const Profile*, std::optional<Bytes>, bool>;

  std::mutex mutex_;
  std::map<std::filesystem::path, Read<Json>> json_;
  std::map<std::filesystem::path, Read<std::shared_ptr<const Profile>>> profiles_;
  std::map<HardwareKey, Json> hardware_;
  std::map<std::pair<const Profile*, const Profile*>, std::shared_ptr<const Profile>> overlaid_;
};

}  // namespace kvtier
