#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sim/core/config.hpp"
#include "sim/core/units.hpp"

/// A profile (`kvtier.profile/3`) holds the measurements of one machine. It is a list of tables; a
/// table holds the times of one operation in one setting over a grid of sizes. profile_operations()
/// defines the operations, their sizes and their times.
namespace kvtier {

inline constexpr const char* kProfileFormat = "kvtier.profile/3";

/// The operations that a profile can hold times of.
enum class OperationId {
  gemm,
  prefill_attention,
  decode_attention,
  ragged_attention,
  elementwise,
  rotation,
  copy_h2d,
  copy_d2h,
  pin_memory,
  copy_duplex,
  copy_beside_compute,
  call_overhead,
  layer_pipeline,
  drive_read,
  drive_write,
  drive_mix,
  drive_to_device,
  drive_beside_copies,
  control_step,
  model_step,
  gemm_grid,
  mixed_attention,
  all_reduce,
  moe,
  mla_prefill,
  mla_decode,
  quantize,
  idle_pass,
  state_prefill,
  state_decode
};
constexpr auto enum_names(OperationId) {
  using enum OperationId;
  return std::array{std::pair{"gemm", gemm},
                    std::pair{"prefill_attention", prefill_attention},
                    std::pair{"decode_attention", decode_attention},
                    std::pair{"ragged_attention", ragged_attention},
                    std::pair{"elementwise", elementwise},
                    std::pair{"rotation", rotation},
                    std::pair{"copy_h2d", copy_h2d},
                    std::pair{"copy_d2h", copy_d2h},
                    std::pair{"pin_memory", pin_memory},
                    std::pair{"copy_duplex", copy_duplex},
                    std::pair{"copy_beside_compute", copy_beside_compute},
                    std::pair{"call_overhead", call_overhead},
                    std::pair{"layer_pipeline", layer_pipeline},
                    std::pair{"drive_read", drive_read},
                    std::pair{"drive_write", drive_write},
                    std::pair{"drive_mix", drive_mix},
                    std::pair{"drive_to_device", drive_to_device},
                    std::pair{"drive_beside_copies", drive_beside_copies},
                    std::pair{"control_step", control_step},
                    std::pair{"model_step", model_step},
                    std::pair{"gemm_grid", gemm_grid},
                    std::pair{"mixed_attention", mixed_attention},
                    std::pair{"all_reduce", all_reduce},
                    std::pair{"moe", moe},
                    std::pair{"mla_prefill", mla_prefill},
                    std::pair{"mla_decode", mla_decode},
                    std::pair{"quantize", quantize},
                    std::pair{"idle_pass", idle_pass},
                    std::pair{"state_prefill", state_prefill},
                    std::pair{"state_decode", state_decode}};
}
[[nodiscard]] const char* to_string(OperationId operation);

/// Transfers to and from drives are requests of at most this size; drive_to_device and
/// drive_beside_copies move blocks of it.
inline constexpr std::int64_t kDriveRequestBytes = std::int64_t{1} << 20;

/// Whether the data lay in a cache when the clock started: two different quantities.
enum class CacheState { cold, hot };
constexpr auto enum_names(CacheState) {
  return std::array{std::pair{"cold", CacheState::cold}, std::pair{"hot", CacheState::hot}};
}

/// The format of a table's numbers: of the weights of a matrix, of the KV of attention.
/// mxfp4_mxfp8: weights in mxfp4, activations in mxfp8.
enum class DataType { fp32, fp16, bf16, fp8, fp8_block, int8, int4, nvfp4, mxfp4, mxfp4_mxfp8 };
constexpr auto enum_names(DataType) {
  using enum DataType;
  return std::array{std::pair{"fp32", fp32},           std::pair{"fp16", fp16},
                    std::pair{"bf16", bf16},           std::pair{"fp8", fp8},
                    std::pair{"fp8_block", fp8_block}, std::pair{"int8", int8},
                    std::pair{"int4", int4},           std::pair{"nvfp4", nvfp4},
                    std::pair{"mxfp4", mxfp4},         std::pair{"mxfp4_mxfp8", mxfp4_mxfp8}};
}
[[nodiscard]] const char* to_string(DataType type);
/// Bytes of one element with its share of the scales: nvfp4 has one byte for 16 elements, mxfp4 one
/// for 32, int4 two for 128.
[[nodiscard]] double bytes_of(DataType type);
/// The type of plain elements of so many bytes: bf16 for 2. None for sizes that have none.
[[nodiscard]] std::optional<DataType> plain_type(std::int64_t element_bytes);

/// The axes, shape and variants of an operation's tables.
struct ProfileOperation {
  OperationId id;
  /// The sizes that its cells vary, in order.
  std::vector<std::string> axes;
  /// The sizes that are the same for all its cells.
  std::vector<std::string> shape;
  /// The settings it is measured in; empty: any name.
  std::vector<std::string> variants;
  /// More work along every axis takes longer, so that a profile which says otherwise is refused.
  bool monotone = false;
  const char* meaning;
  /// Sizes that a table may leave out.
  std::vector<std::string> optional_shape{};
};
/// Variants of call_overhead that are more than the device's own overheads.
inline constexpr const char* kEvent = "event";
inline constexpr const char* kHandOver = "hand_over";
inline constexpr const char* kTransfer = "transfer";
inline constexpr const char* kPassSubmission = "pass_submission";
inline constexpr const char* kPassEnd = "pass_end";
/// The variant of drive_read, drive_write and drive_to_device for a drive after idle time.
inline constexpr const char* kAfterIdle = "after_idle";
/// Variants of model_step: the first prefill after idle time, the second one, one of several
/// back-to-back prefills, and one of several decode iterations after a prefill.
inline constexpr const char* kCold = "cold";
inline constexpr const char* kSecond = "second";
inline constexpr const char* kWarm = "warm";
inline constexpr const char* kDecodeWarm = "decode_warm";
/// The method of copies by the device's engine. Profiles may have tables of other methods, which
/// have no effect on the simulation.
inline constexpr const char* kCopyEngine = "copy engine";
/// Every operation once, in the order of OperationId.
[[nodiscard]] std::span<const ProfileOperation> profile_operations();
[[nodiscard]] const ProfileOperation& profile_operation(OperationId id);

/// One point of a grid: quartiles of the undisturbed samples.
struct ProfileCell {
  /// A value for each axis of the table.
  std::vector<std::int64_t> at;
  double p25_seconds = 0;
  double median_seconds = 0;
  double p75_seconds = 0;
  /// Samples that the quartiles are of.
  std::int64_t n = 0;
  /// Samples that were taken and rejected: clocks, other load, a physical limit.
  std::int64_t disturbed = 0;
  /// ragged_attention only: the requests of a ragged batch, each as [new tokens, past tokens].
  std::vector<std::vector<std::int64_t>> parts;

  friend bool operator==(const ProfileCell&, const ProfileCell&) = default;
};
template <class V>
void describe(V& v, ProfileCell& c) {
  v.field("at", c.at, "The cell's place on the table's axes.", required(non_negative()));
  v.field("p25_seconds", c.p25_seconds, "First quartile.", required(positive()));
  v.field("median_seconds", c.median_seconds, "Median.", required(positive()));
  v.field("p75_seconds", c.p75_seconds, "Third quartile.", required(positive()));
  v.field("n", c.n, "Samples that the quartiles are of.", required(at_least(1)));
  v.field("disturbed", c.disturbed, "Samples that were rejected.", non_negative());
  v.field("parts", c.parts, "The requests of a ragged batch: [new tokens, past tokens].",
          non_negative());
}

/// A point of the grid that was not measured.
struct LeftOutCell {
  std::vector<std::int64_t> at;
  std::string why;

  friend bool operator==(const LeftOutCell&, const LeftOutCell&) = default;
};
template <class V>
void describe(V& v, LeftOutCell& c) {
  v.field("at", c.at, "The cell's place on the table's axes.", required(non_negative()));
  v.field("why", c.why, "Why it was not measured.", required());
}

/// The cells of a table in little space: a time for each place of a full grid.
struct CellGrid {
  /// The values on each axis of the table, ascending.
  std::vector<std::vector<std::int64_t>> at;
  /// The last axis runs fastest. 0: not measured.
  std::vector<double> microseconds;

  friend bool operator==(const CellGrid&, const CellGrid&) = default;
};
template <class V>
void describe(V& v, CellGrid& c) {
  v.field("at", c.at, "The values on each axis of the table.", required(non_negative()));
  v.field("microseconds", c.microseconds,
          "The median at each place, the last axis running fastest; 0: not measured.",
          required(non_negative()));
}

/// One operation in one setting.
struct ProfileTable {
  OperationId operation = OperationId::gemm;
  /// The setting: which matrix, which way of a link, ...
  std::string variant;
  /// How it was done: the library's call, pinned memory, the I/O engine.
  std::string method;
  CacheState cache = CacheState::cold;
  /// Unset: plain elements of the shape's `element_bytes`.
  std::optional<DataType> dtype;
  std::map<std::string, std::int64_t> shape;
  std::vector<std::string> axes;
  std::vector<ProfileCell> cells;
  /// Only in files: reading makes cells of it.
  std::optional<CellGrid> grid;
  std::vector<LeftOutCell> left_out;

  friend bool operator==(const ProfileTable&, const ProfileTable&) = default;
};
template <class V>
void describe(V& v, ProfileTable& c) {
  v.field("operation", c.operation, "What was measured.", required());
  v.field("variant", c.variant, "In which setting.", required());
  v.field("method", c.method, "How it was done.");
  v.field("cache", c.cache, "Whether the data lay in a cache before.", required());
  v.field("dtype", c.dtype,
          "Format of the weights of a matrix, or of the KV of attention; none: plain elements of "
          "the shape's element_bytes.");
  v.field("shape", c.shape, "Sizes that all cells share.", required(at_least(1)));
  v.field("axes", c.axes, "Names of the sizes that the cells vary.", required());
  v.field("cells", c.cells, "The measured cells.");
  v.field("grid", c.grid, "The measured cells in place of `cells`, where each has one sample.");
  v.field("left_out", c.left_out, "The cells that were not measured, and why.");
}

/// The device that computes. `peak` and `memory_bandwidth` are upper limits: no time of a profile
/// may be shorter than they allow.
struct ProfileDevice {
  std::string name;
  std::string driver;
  Bytes memory;
  FlopsPerSecond peak;
  /// Limits in 8 and 4 bits; unset: that of the next wider format.
  std::optional<FlopsPerSecond> peak_8bit;
  std::optional<FlopsPerSecond> peak_4bit;
  BytesPerSecond memory_bandwidth;
  /// Source of the two limits.
  std::string limits_source;

  friend bool operator==(const ProfileDevice&, const ProfileDevice&) = default;
};
template <class V>
void describe(V& v, ProfileDevice& c) {
  v.field("name", c.name, "The product, as the driver or the system names it.", required());
  v.field("driver", c.driver, "Version of its driver; for a CPU, of the system.", required());
  v.field("memory", c.memory, "Its memory.", required(positive()));
  v.field("peak", c.peak, "Upper limit of its operations.", required(positive()));
  v.field("peak_8bit", c.peak_8bit, "The same in 8 bits (fp8, int8); none: as peak.", positive());
  v.field("peak_4bit", c.peak_4bit, "The same in 4 bits (fp4); none: as peak_8bit.", positive());
  v.field("memory_bandwidth", c.memory_bandwidth, "Upper limit of its memory.",
          required(positive()));
  v.field("limits_source", c.limits_source, "Where the two limits come from.", required());
}

/// The machine around the device.
struct ProfileHost {
  std::string cpu;
  std::int64_t cores = 1;
  Bytes memory;

  friend bool operator==(const ProfileHost&, const ProfileHost&) = default;
};
template <class V>
void describe(V& v, ProfileHost& c) {
  v.field("cpu", c.cpu, "The processor.", required());
  v.field("cores", c.cores, "Cores that were used.", required(at_least(1)));
  v.field("memory", c.memory, "Host memory.", required(positive()));
}

/// The storage that the drive operations used.
struct ProfileStorage {
  std::string file_system;
  std::string engine;
  Bytes file;
  Bytes capacity;

  friend bool operator==(const ProfileStorage&, const ProfileStorage&) = default;
};
template <class V>
void describe(V& v, ProfileStorage& c) {
  v.field("file_system", c.file_system, "Type of the file system, and the drive if known.",
          required());
  v.field("engine", c.engine, "What did the I/O.", required());
  v.field("file", c.file, "Size of the test file.", required(positive()));
  v.field("capacity", c.capacity, "Size of the file system.", required(positive()));
}

struct Provenance {
  /// ISO 8601, UTC.
  std::string date;
  std::string command;
  /// Library to version.
  std::map<std::string, std::string> libraries;
  /// Name of the model whose shapes were measured.
  std::string model;
  /// Notes for readers: other load, settings that skew results, the source of a table.
  std::vector<std::string> notes;

  friend bool operator==(const Provenance&, const Provenance&) = default;
};
template <class V>
void describe(V& v, Provenance& c) {
  v.field("date", c.date, "When it was measured, ISO 8601.", required());
  v.field("command", c.command, "What wrote the profile.", required());
  v.field("libraries", c.libraries, "Versions of the libraries that were timed.", required());
  v.field("model", c.model, "The model whose shapes were measured.");
  v.field("notes", c.notes, "What a reader has to know.");
}

/// The type of a table's numbers: its `dtype`, or that of its plain elements.
[[nodiscard]] std::optional<DataType> type_of(const ProfileTable& table);

struct Profile {
  std::string format = kProfileFormat;
  std::string name;
  Provenance provenance;
  ProfileDevice device;
  std::optional<ProfileHost> host;
  std::optional<ProfileStorage> storage;
  std::vector<ProfileTable> tables;

  friend bool operator==(const Profile&, const Profile&) = default;
};
template <class V>
void describe(V& v, Profile& c) {
  v.field("format", c.format, "kvtier.profile/3.", required());
  v.field("name", c.name, "The name in results and messages.", required());
  v.field("provenance", c.provenance, "When and how it was measured.", required());
  v.field("device", c.device, "What computes.", required());
  v.field("host", c.host, "The machine around it.");
  v.field("storage", c.storage, "The storage that was measured, or none.");
  v.field("tables", c.tables, "What was measured.", required());
}

/// A larger piece of work that takes less than this share of a smaller one's time is no noise: the
/// largest drop in 2,088 rows of published A100 tables is to 0.62.
inline constexpr double kLeastShareOfSmallerWork = 0.5;

/// Along every axis.
[[nodiscard]] bool at_least_as_large(const std::vector<std::int64_t>& larger,
                                     const std::vector<std::int64_t>& smaller);
/// Whether `larger`, at least as large as `smaller`, took so much less time that one of them cannot
/// be right. A profile with two such cells of a monotone operation is refused.
[[nodiscard]] bool contradicts(const ProfileCell& larger, const ProfileCell& smaller);

/// Reports problems that no single key shows: another version, axes, shapes and variants that are
/// not the operation's, quartiles out of order, cells that are there twice, and times that fall as
/// the work grows.
void check_profile(const Profile& profile, Problems& problems);

/// The beginning of a note on values that today's calibration measures differently.
inline constexpr const char* kConvertedNote = "converted: ";

/// A profile in the format kvtier.profile/1 or /2 in today's format: operations and variants have
/// other names. A note says so if decode iterations were measured without prefills. The result is
/// not checked. Throws ConfigError for other formats.
[[nodiscard]] Json convert_profile(Json old, const std::string& origin);

/// Throws ConfigError with every problem of the file at once.
[[nodiscard]] Profile profile_from_json(const Json& json, const std::string& origin);
[[nodiscard]] Profile read_profile(const std::filesystem::path& path);

/// The text of a profile's file: one line for each cell, or grids where compact_grid gives one.
enum class CellLayout { lines, grids };
[[nodiscard]] std::string profile_text(const Profile& profile,
                                       CellLayout layout = CellLayout::lines);
/// The grid of such cells, each with one sample; none where a cell has more to say than its median,
/// or where the grid would be mostly gaps.
[[nodiscard]] std::optional<CellGrid> compact_grid(const ProfileTable& table);
/// The cells of a grid that were measured, in its order.
[[nodiscard]] std::vector<ProfileCell> cells_of(const CellGrid& grid);
/// Appears under its name only when complete. Throws DeviceError.
void write_profile(const std::filesystem::path& path, const Profile& profile);

/// `own`, and the tables of `rest` whose kind `own` lacks. A kind is an operation with its dtype;
/// of all-reduces also the variant, of experts the shape, of latent attention the variant, of
/// attention the width of heads and the window.
[[nodiscard]] Profile overlay(Profile own, const Profile& rest);

/// The tables of one operation, in any variant or in one.
[[nodiscard]] std::vector<const ProfileTable*> find_tables(
    const Profile& profile, OperationId operation, std::optional<std::string_view> variant = {});

}  // namespace kvtier
