#include "calibrate/calibrate.hpp"

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <iterator>

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <sys/sysinfo.h>

#include "hw/device/cpu_device.hpp"
#include "sim/core/errors.hpp"
#include "sim/core/file.hpp"

namespace kvtier::calibrate {
namespace {

constexpr std::int64_t kGibibyte = std::int64_t{1} << 30;
/// Budget of a quick run, which takes at most 90 seconds with the program's start and the test
/// file.
constexpr double kQuickSeconds = 82;
constexpr double kFullSeconds = 6 * 3600;
/// One slow run does not move the median of three.
constexpr int kVisits = 3;
constexpr Bytes kQuickFile(kGibibyte);
constexpr Bytes kFullFile(16 * kGibibyte);

/// The command without paths, which do not describe the machine.
std::string command_of(const CalibrateOptions& options) {
  std::string command = "kvtier calibrate --device " + options.device.kind;
  if (options.device.kind != "cpu" || options.device.index > 0) {
    command += fmt::format(":{}", options.device.index);
  }
  command += options.storage ? " --storage DIR" : "";
  command += " --model " + options.model.name;
  command += options.full ? " --full" : " --quick";
  return command + " --out PROFILE.json";
}

double load_average() {
  double load[1] = {};
  return ::getloadavg(load, 1) == 1 ? load[0] : 0;
}

Profile describe(const CalibrateOptions& options, const Device& device, const Device& host,
                 const StorageBench* storage) {
  const DeviceInfo& info = device.info();
  Profile profile;
  profile.name = fmt::format("{}, {}", info.name, options.model.name);
  profile.provenance.date = utc_now();
  profile.provenance.command = command_of(options);
  profile.provenance.libraries = {info.libraries.begin(), info.libraries.end()};
  profile.provenance.libraries["kvtier"] = options.version;
  profile.provenance.model = options.model.name;
  profile.device = {
      .name = info.name,
      .driver = info.driver,
      .memory = info.memory,
      .peak = FlopsPerSecond(info.limits.flops_per_second),
      .memory_bandwidth = BytesPerSecond(info.limits.memory_bytes_per_second),
      .limits_source = info.kind == "cpu"
                           ? "attained in registers by all threads, a quarter added; two bytes "
                             "from a cache for each operation"
                           : "multiprocessors, clocks and bus, as the driver tells them"};
  profile.host = ProfileHost{
      .cpu = host.info().name, .cores = host.info().processors, .memory = host.info().memory};
  if (storage != nullptr) {
    profile.storage = describe(*storage);
  }
  return profile;
}

/// The kept part of an earlier run, or its finished profile, without the cells to be tried again.
Profile earlier(const CalibrateOptions& options, const Profile& now) {
  std::filesystem::path from = kept_path(options.out);
  if (!is_file(from)) {
    from = options.out;
  }
  if (!is_file(from)) {
    throw ConfigError(fmt::format("--resume: neither {} nor {} is there",
                                  kept_path(options.out).string(), options.out.string()));
  }
  Profile profile = read_profile(from);
  std::vector<std::string> problems;
  const auto same = [&](const char* what, const std::string& before, const std::string& here) {
    if (before != here) {
      problems.push_back(fmt::format("--resume: {} was measured with {} {}, this run has {}",
                                     from.string(), what, before.empty() ? "none" : before,
                                     here.empty() ? "none" : here));
    }
  };
  same("device", profile.device.name, now.device.name);
  same("model", profile.provenance.model, now.provenance.model);
  const auto attention = [](bool own) { return own ? "kvtier's attention" : "FlashInfer's"; };
  const bool had_own = std::ranges::none_of(profile.tables, [](const ProfileTable& table) {
    return table.operation == OperationId::ragged_attention && table.variant == kFlashInferVariant;
  });
  same("kernels:", attention(had_own), attention(options.attention == AttentionLibrary::own));
  same("storage engine", profile.storage ? profile.storage->engine : "",
       now.storage ? now.storage->engine : "");
  if (!problems.empty()) {
    throw ConfigError(std::move(problems));
  }
  forget_left_out(profile);
  // All other notes are written anew.
  std::erase_if(profile.provenance.notes, [](const std::string& line) {
    return !line.starts_with("continued on ") && !line.starts_with(kConvertedNote);
  });
  profile.provenance.notes.push_back("continued on " + now.provenance.date);
  return profile;
}

Target make_target(Device& device, const ModelConfig& model, bool full) {
  const Bytes on_device = device.free_memory(MemoryKind::device);
  const Bytes for_model(on_device.value / 4 * 3);
  // A GPU draws the weights of a large model in a moment, a CPU takes minutes. The model stays on
  // the GPU while other cells are measured.
  const bool on_gpu = device.info().kind != "cpu";
  const Bytes steps = memory_of_steps(model, device.info().element);
  const Bytes kept = on_gpu && steps <= for_model ? steps : Bytes(0);
  const Bytes half(std::min(on_device - kept, device.free_memory(MemoryKind::pinned)).value / 2);
  const Bytes memory = full ? half : std::min(half, Bytes(2 * kGibibyte));
  return {.device = device,
          .model = model,
          .full = full,
          .memory = memory,
          .model_memory = on_gpu ? std::optional(for_model) : std::nullopt,
          .seed = 1};
}

void note(Profile& profile, const CalibrateOptions& options, double load_before,
          const StorageBench* storage) {
  std::vector<std::string>& notes = profile.provenance.notes;
  notes.push_back(fmt::format("load average {:.2f} before, {:.2f} after (the run itself counts)",
                              load_before, load_average()));
  const std::vector<std::string> lines = summarize(profile);
  notes.insert(notes.end(), lines.begin(), lines.end());
  if (!options.full) {
    notes.push_back("a quick run: few samples for each cell");
  }
  if (storage != nullptr) {
    notes.push_back(fmt::format("the drive merged {} requests with neighbours, of all that used it",
                                merged_requests(*storage)));
  }
}

}  // namespace

void check_heads(const ModelConfig& model) {
  if (!is_dense(model)) {
    throw ConfigError(fmt::format(
        "--model: {} has layers that no kernel here computes; measured are dense models "
        "with full attention in whole bytes a weight",
        model.name));
  }
  if (!kernels::is_valid(attention_heads(model))) {
    throw ConfigError(fmt::format(
        "--model: {} has {} query heads on {} KV heads of width {}; attention is measured for "
        "widths that are multiples of 16 up to 256, and at most 16 query heads on a KV head",
        model.name, model.attention_heads, model.kv_heads, model.head_dim));
  }
}

std::string utc_now() {
  return fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr)));
}

std::filesystem::path kept_path(const std::filesystem::path& out) {
  return out.string() + ".partial";
}

std::vector<PlannedTable> plan_all(const Target& target, std::shared_ptr<StorageBench> storage) {
  std::vector<PlannedTable> plan = plan_compute(target);
  const auto append = [&plan](std::vector<PlannedTable> tables) {
    std::ranges::move(tables, std::back_inserter(plan));
  };
  append(plan_copies(target));
  if (storage != nullptr) {
    append(plan_storage(target, std::move(storage)));
  }
  append(plan_control(target));
  if (target.attention == AttentionLibrary::own) {
    append(plan_steps(target));
  }
  return plan;
}

std::vector<std::string> summarize(const Profile& profile) {
  std::size_t cells = 0;
  std::size_t left_out = 0;
  std::int64_t samples = 0;
  std::int64_t disturbed = 0;
  for (const ProfileTable& table : profile.tables) {
    cells += table.cells.size();
    left_out += table.left_out.size();
    for (const ProfileCell& cell : table.cells) {
      samples += cell.n;
      disturbed += cell.disturbed;
    }
  }
  std::vector<std::string> lines{
      fmt::format("{} cells measured, {} left out", cells, left_out),
      fmt::format("{} samples, {} more rejected as disturbed", samples, disturbed)};
  // Quick runs leave out few cells on an idle machine.
  if (left_out * 4 > cells) {
    lines.emplace_back(
        "too many cells are left out for reliable times: run again with --resume when nothing else "
        "runs on the machine");
  }
  return lines;
}

Profile calibrate(const CalibrateOptions& options) {
  const double load_before = load_average();
  const std::unique_ptr<Device> device = open_device(options.device);
  const std::unique_ptr<Device> host = device->info().kind == "cpu" ? nullptr : make_cpu_device();
  check_heads(options.model);
  if (!device->has_attention(options.attention, attention_heads(options.model))) {
    throw DeviceError(
        fmt::format("FlashInfer: {} has none of its kernels for heads of {}; a CUDA module has "
                    "them if it was built by make flashinfer",
                    device->info().name, options.model.head_dim));
  }
  std::shared_ptr<StorageBench> storage;
  if (options.storage) {
    storage = make_storage_bench(*options.storage, options.full ? kFullFile : kQuickFile,
                                 StorageEngineKind::automatic);
  }
  Profile profile = describe(options, *device, host ? *host : *device, storage.get());
  if (options.resume) {
    profile = earlier(options, profile);
  }
  Target target = make_target(*device, options.model, options.full);
  target.attention = options.attention;
  const std::filesystem::path kept = kept_path(options.out);
  SchedulerMonitor monitor;
  run_plan(plan_all(target, storage),
           {.memory = target.memory,
            .seconds = options.full ? kFullSeconds : kQuickSeconds,
            .visits = kVisits,
            .progress = options.progress,
            .check = options.check,
            .keep = [&kept](const Profile& so_far) { write_profile(kept, so_far); }},
           steady_clock(), monitor, profile);
  note(profile, options, load_before, storage.get());
  write_profile(options.out, profile);
  std::error_code ignored;
  std::filesystem::remove(kept, ignored);
  return profile;
}

CheckReport check_on_device(const Profile& profile, const LiveCheckOptions& options) {
  const std::unique_ptr<Device> device = open_device(options.device);
  std::vector<std::string> problems;
  const auto same = [&](const char* what, const std::string& before, const std::string& here) {
    if (before != here) {
      problems.push_back(fmt::format("--check: the profile was measured with {} {}, here is {}",
                                     what, before.empty() ? "none" : before, here));
    }
  };
  same("device", profile.device.name, device->info().name);
  same("model", profile.provenance.model, options.model.name);
  if (!problems.empty()) {
    throw ConfigError(std::move(problems));
  }
  check_heads(options.model);
  const Target target = make_target(*device, options.model, false);
  const std::vector<PlannedTable> plan = plan_all(target, nullptr);
  SchedulerMonitor monitor;
  Progress at{.all = static_cast<std::size_t>(measurements(profile, options.cells))};
  const std::int64_t begin_ns = steady_clock().now_ns();
  const MeasureCell measure = [&](const ProfileTable& table, const Place& place) {
    at.cell = fmt::format("{} {} [{}]", kvtier::to_string(table.operation), table.variant,
                          fmt::join(place.at, ", "));
    const double passed = static_cast<double>(steady_clock().now_ns() - begin_ns) * 1e-9;
    at.seconds_left = at.done == 0 ? 0
                                   : passed / static_cast<double>(at.done) *
                                         static_cast<double>(at.all - at.done);
    options.progress(at);
    at.done = std::min(at.done + 1, at.all);
    return measure_cell(plan, table, place,
                        {.memory = target.memory, .seconds = kQuickSeconds, .check = options.check},
                        steady_clock(), monitor);
  };
  return check_by_measuring(profile, measure, options.cells);
}

}  // namespace kvtier::calibrate
