#include "hw/profile/profile.hpp"

#include <algorithm>
#include <array>
#include <functional>
#include <set>
#include <string>

#include <fmt/format.h>

#include "sim/core/assert.hpp"
#include "sim/core/file.hpp"
#include "sim/core/text.hpp"

namespace kvtier {
namespace {

constexpr const char* kSchemaKey = "$schema";

std::vector<ProfileOperation> make_operations() {
  using enum OperationId;
  const std::vector<std::string> matrix{"n", "k", "element_bytes"};
  const std::vector<std::string> attention{"attention_heads", "kv_heads", "head_dim",
                                           "element_bytes"};
  const std::vector<std::string> heads{"heads", "head_dim", "element_bytes"};
  const std::vector<std::string> rows{"width", "element_bytes"};
  const std::vector<std::string> block{"block_bytes", "queue_depth"};
  const std::vector<std::string> latent{"kernel", "module", "sparse_module", "sparse_module_glm"};
  const std::vector<std::string> state{"key_heads", "value_heads", "key_dim", "value_dim"};
  return {
      {gemm,
       {"tokens"},
       matrix,
       {},
       true,
       "tokens x k times k x n: one matrix of the model on one device; the variant names it"},
      {prefill_attention,
       {"new_tokens", "past_tokens"},
       attention,
       {},
       true,
       "causal attention of one request's new tokens to its past ones and themselves, one layer",
       {"window"}},
      {decode_attention,
       {"batch", "context"},
       attention,
       {},
       true,
       "attention of one new token of each of batch requests to context tokens each, one layer",
       {"window"}},
      {ragged_attention,
       {"case"},
       attention,
       {},
       false,
       "attention of a ragged batch, one layer; the cell's parts say which"},
      {elementwise,
       {"tokens"},
       rows,
       {"norm", "activation", "residual", "embedding", "sampling", "kv_write", "convolution"},
       true,
       "work on each element of rows of a given width: one call"},
      {rotation,
       {"tokens"},
       heads,
       {"rope", "re_embed"},
       true,
       "rotary positions: of queries and keys of new tokens (rope), of cached keys (re_embed); one "
       "layer"},
      {copy_h2d,
       {"bytes", "pieces"},
       {},
       {"pinned", "pageable"},
       false,
       "copy host to device of bytes in so many equal pieces"},
      {copy_d2h,
       {"bytes", "pieces"},
       {},
       {"pinned", "pageable"},
       false,
       "copy device to host of bytes in so many equal pieces"},
      {pin_memory, {"bytes"}, {}, {}, false, "pinning (pin) and the like of host memory"},
      {copy_duplex,
       {"bytes"},
       {},
       {"to_device", "to_host", "to_device_of_both", "to_host_of_both"},
       false,
       "copy of bytes one way: alone, or while the other way is as busy (of_both)"},
      {copy_beside_compute,
       {"bytes"},
       {},
       {},
       false,
       "copy of bytes beside work of the device's processors; the variant says which way, the "
       "method beside what"},
      {call_overhead,
       {},
       {},
       {},
       false,
       "one call: launch, event, stream_wait, copy_submit; after idle time hand_over, to another "
       "thread of the host, and transfer, a small copy by such a thread, which tells of its end; "
       "of a pass of the model pass_submission, until the host has queued it, and pass_end, the "
       "host's time before and after that of the device"},
      {layer_pipeline,
       {"layers", "bytes", "tokens"},
       {},
       {"pipeline", "copies", "compute"},
       false,
       "layers x (wait, copy of bytes, compute of tokens), and its two parts alone; all layers"},
      {drive_read,
       block,
       {},
       {},
       false,
       "reading one block, with so many in flight: seconds over blocks; after_idle: of a drive "
       "that has had nothing to do for a while"},
      {drive_write,
       block,
       {},
       {"burst", kAfterIdle, "sustained"},
       false,
       "writing one block, with so many in flight: seconds over blocks; after_idle as in "
       "drive_read"},
      {drive_mix,
       {"block_bytes", "queue_depth", "read_percent"},
       {},
       {},
       false,
       "one block, read or written in that mix: seconds over blocks"},
      {drive_to_device,
       {"bytes"},
       {},
       {},
       false,
       "drive to pinned memory to device, all of bytes; after_idle as in drive_read, and in "
       "pieces of KV by the copy engine"},
      {drive_beside_copies,
       {"bytes"},
       {},
       {},
       false,
       "reading or writing bytes, in blocks of 1 MiB, beside other traffic; the variant says which "
       "way, the method beside what"},
      {control_step,
       {"items"},
       {},
       {},
       false,
       "one step of the control plane over so many requests or entries: scheduler_step, lookup, "
       "allocation"},
      {model_step,
       {"requests", "new_tokens", "past_tokens"},
       {"layers", "hidden_size", "attention_heads", "kv_heads", "head_dim", "intermediate_size",
        "gated_mlp", "vocabulary_size", "element_bytes"},
       {kCold, kSecond, kWarm, kDecodeWarm},
       false,
       "a whole model, from tokens to tokens: each of so many requests computes new tokens after "
       "past ones; cold: the first one after idle time, second: the second one, warm: one of "
       "several back-to-back passes, decode_warm: the same after a prefill of another request"},
      {gemm_grid,
       {"tokens", "n", "k"},
       {},
       {},
       false,
       "tokens x k times k x n for many n and k, of weights of the table's dtype"},
      {mixed_attention,
       {"new_tokens", "past_tokens", "batch", "context"},
       attention,
       {},
       false,
       "attention of one prefill and of batch decodes of context tokens each in one iteration, one "
       "layer"},
      {all_reduce,
       {"gpus", "bytes"},
       {},
       {"fused", "graph", "eager", "nccl"},
       false,
       "sum of bytes over so many GPUs: by the engine in a kernel that also adds the residual and "
       "norms, in a CUDA graph or outside of one, or by NCCL"},
      {moe,
       {"tokens"},
       {"hidden_size", "intermediate_size", "experts", "top_k", "expert_gpus"},
       {},
       true,
       "the experts of one layer on one GPU, which has intermediate_size columns of each of "
       "experts / expert_gpus experts; the variant says how tokens spread over experts"},
      {mla_prefill,
       {"new_tokens", "past_tokens"},
       {"attention_heads"},
       latent,
       true,
       "latent attention of one prefill, one layer: the kernel alone, or with its projections "
       "(module: DeepSeek-V3; sparse, with an indexer: DeepSeek-V3.2, and GLM-5)"},
      {mla_decode,
       {"batch", "context"},
       {"attention_heads"},
       latent,
       true,
       "latent attention of one new token of each of batch requests, one layer; as mla_prefill"},
      {quantize,
       {"tokens", "width"},
       {},
       {"scales", "cast"},
       false,
       "activations of a row to the table's dtype: finding scales, or casting with given ones"},
      {idle_pass,
       {"idle_us"},
       {"layers", "hidden_size", "attention_heads", "kv_heads", "head_dim", "intermediate_size",
        "gated_mlp", "vocabulary_size", "element_bytes"},
       {},
       false,
       "a warm prefill of 8 tokens after so long without work"},
      {state_prefill,
       {"new_tokens"},
       state,
       {},
       true,
       "the gated delta rule of a state layer over one request's new tokens, without convolution"},
      {state_decode,
       {"batch"},
       state,
       {},
       true,
       "the same for one new token of each of batch requests"},
  };
}

std::string place(const std::vector<std::int64_t>& at) {
  return fmt::format("[{}]", fmt::join(at, ", "));
}

/// The slowest cell of less work, if it is so slow that this one cannot be right.
const ProfileCell* contradicting(const ProfileTable& table, const ProfileCell& cell) {
  const ProfileCell* worst = nullptr;
  for (const ProfileCell& other : table.cells) {
    if (contradicts(cell, other) && cell.at != other.at &&
        (worst == nullptr || other.median_seconds > worst->median_seconds)) {
      worst = &other;
    }
  }
  return worst;
}

void check_cell(const ProfileTable& table, const ProfileOperation& operation,
                const ProfileCell& cell, const std::string& pointer, Problems& problems) {
  if (cell.p25_seconds > cell.median_seconds || cell.median_seconds > cell.p75_seconds) {
    problems.add(pointer, fmt::format("quartiles out of order: {}, {}, {}", cell.p25_seconds,
                                      cell.median_seconds, cell.p75_seconds));
  }
  const bool ragged = operation.id == OperationId::ragged_attention;
  const bool parts_fit =
      ragged
          ? !cell.parts.empty() &&
                std::ranges::all_of(cell.parts, [](const auto& part) { return part.size() == 2; })
          : cell.parts.empty();
  if (!parts_fit) {
    problems.add(
        pointer + "/parts",
        ragged ? "a ragged batch lists its requests as [new tokens, past tokens]"
               : fmt::format("only ragged_attention has parts, not {}", to_string(operation.id)));
  }
  if (operation.id == OperationId::model_step) {
    const bool decodes = table.variant == kDecodeWarm;
    if (cell.at[0] < 1 || cell.at[1] < 1 || (decodes && cell.at[1] > 1)) {
      problems.add(pointer + "/at",
                   fmt::format("expected at least one request and {} new token of each, got {}",
                               decodes ? "one" : "at least one", place(cell.at)));
    }
  }
  if (operation.monotone) {
    if (cell.at[0] < 1) {
      problems.add(pointer + "/at",
                   fmt::format("{} has to be at least 1, got {}", operation.axes[0], cell.at[0]));
    }
    if (const ProfileCell* other = contradicting(table, cell)) {
      problems.add(
          pointer + "/median_seconds",
          fmt::format("more work takes less time, beyond noise: {} s at {}, but {} s at {}",
                      cell.median_seconds, place(cell.at), other->median_seconds,
                      place(other->at)));
    }
  }
}

void check_table(const ProfileTable& table, const std::string& pointer, Problems& problems) {
  const ProfileOperation& operation = profile_operation(table.operation);
  const char* id = to_string(operation.id);
  if (table.axes != operation.axes) {
    problems.add(pointer + "/axes",
                 fmt::format("the axes of {} are [{}], got [{}]", id,
                             fmt::join(operation.axes, ", "), fmt::join(table.axes, ", ")));
    return;
  }
  if (!operation.variants.empty() &&
      std::ranges::find(operation.variants, table.variant) == operation.variants.end()) {
    problems.add(
        pointer + "/variant",
        fmt::format("the variants of {} are {}, got {}{}", id, fmt::join(operation.variants, ", "),
                    quote_text(table.variant), suggestion(table.variant, operation.variants)));
  }
  std::set<std::string> shape(operation.shape.begin(), operation.shape.end());
  std::set<std::string> given;
  for (const auto& [key, value] : table.shape) {
    if (std::ranges::find(operation.optional_shape, key) == operation.optional_shape.end()) {
      given.insert(key);
    }
  }
  if (shape != given) {
    problems.add(pointer + "/shape", fmt::format("the shape of {} is given by [{}], got [{}]", id,
                                                 fmt::join(shape, ", "), fmt::join(given, ", ")));
  }
  if (table.cells.empty() && table.left_out.empty()) {
    problems.add(pointer + "/cells", "no cell was measured and none is said to be left out");
  }
  std::set<std::vector<std::int64_t>> seen;
  bool places_fit = true;
  const auto check_place = [&](const std::vector<std::int64_t>& at, const std::string& where) {
    if (at.size() != table.axes.size()) {
      problems.add(where + "/at",
                   fmt::format("{} has {} axes, got {}", id, table.axes.size(), place(at)));
      places_fit = false;
    } else if (!seen.insert(at).second) {
      problems.add(where + "/at", "this cell is there twice: " + place(at));
    }
  };
  for (std::size_t i = 0; i < table.cells.size(); ++i) {
    check_place(table.cells[i].at, fmt::format("{}/cells/{}", pointer, i));
  }
  for (std::size_t i = 0; i < table.left_out.size(); ++i) {
    check_place(table.left_out[i].at, fmt::format("{}/left_out/{}", pointer, i));
  }
  if (!places_fit) {
    return;
  }
  for (std::size_t i = 0; i < table.cells.size(); ++i) {
    check_cell(table, operation, table.cells[i], fmt::format("{}/cells/{}", pointer, i), problems);
  }
}

/// Makes cells of the grids of tables; reports those that are no grid.
void expand_grids(Profile& profile, Problems& problems) {
  for (std::size_t i = 0; i < profile.tables.size(); ++i) {
    ProfileTable& table = profile.tables[i];
    if (!table.grid) {
      continue;
    }
    const std::string pointer = fmt::format("/tables/{}/grid", i);
    if (!table.cells.empty()) {
      problems.add(pointer, "expected cells or a grid, got both");
    }
    double places = 1;
    for (std::size_t axis = 0; axis < table.grid->at.size(); ++axis) {
      const std::vector<std::int64_t>& values = table.grid->at[axis];
      places *= static_cast<double>(values.size());
      if (std::ranges::adjacent_find(values, std::greater_equal()) != values.end()) {
        problems.add(fmt::format("{}/at/{}", pointer, axis), "expected ascending values");
      }
    }
    if (table.grid->at.size() != table.axes.size()) {
      problems.add(pointer + "/at", fmt::format("expected values for each of {} axes, got {}",
                                                table.axes.size(), table.grid->at.size()));
    } else if (places != static_cast<double>(table.grid->microseconds.size())) {
      problems.add(pointer + "/microseconds",
                   fmt::format("expected a time for each of {} places, got {}", places,
                               table.grid->microseconds.size()));
    }
    if (!problems.empty()) {
      return;
    }
    table.cells = cells_of(*table.grid);
    table.grid.reset();
  }
}

constexpr std::array kOldFormats{"kvtier.profile/1", "kvtier.profile/2"};

bool is_old_format(std::string_view format) {
  return std::ranges::find(kOldFormats, format) != kOldFormats.end();
}

void report_format(const std::string& format, const std::string& file, Problems& problems) {
  problems.add(
      "/format",
      fmt::format("expected \"{}\", got {}: {}", kProfileFormat, quote_text(format),
                  is_old_format(format)
                      ? fmt::format("convert it with kvtier calibrate --convert {} --out NEW", file)
                      : "measure again, or use the release that wrote it"));
}

/// The name of an operation in kvtier.profile/1, such as "G1", to its name today.
std::optional<OperationId> renamed_operation(std::string_view old_name) {
  constexpr std::array kOldNames{"G1", "A1", "A2", "A3", "E1", "R1", "C1", "C2", "C3", "C4",
                                 "C5", "C6", "C7", "D1", "D2", "D3", "D4", "D5", "X1", "X2"};
  const auto* const found = std::ranges::find(kOldNames, old_name);
  if (found == kOldNames.end()) {
    return std::nullopt;
  }
  return static_cast<OperationId>(found - kOldNames.begin());
}

/// The variant of an operation in kvtier.profile/2 to its name today.
std::string renamed_variant(std::string_view operation, std::string variant) {
  constexpr std::array kSteps{std::pair{"step", kCold}, std::pair{"prefill_second", kSecond},
                              std::pair{"prefill_run", kWarm},
                              std::pair{"decode_run", kDecodeWarm}};
  if (operation == to_string(OperationId::model_step)) {
    for (const auto& [old_name, name] : kSteps) {
      if (variant == old_name) {
        return name;
      }
    }
  }
  return operation.starts_with("drive_") && variant == "after_pause" ? kAfterIdle : variant;
}

}  // namespace

const char* to_string(DataType type) {
  for (const auto& [name, value] : enum_names(type)) {
    if (value == type) {
      return name;
    }
  }
  KVTIER_ASSERT(false, "every type has a name");
}

double bytes_of(DataType type) {
  switch (type) {
    case DataType::fp32:
      return 4;
    case DataType::fp16:
    case DataType::bf16:
      return 2;
    case DataType::fp8:
    case DataType::fp8_block:
    case DataType::int8:
      return 1;
    case DataType::int4:
      return 0.5 + 2.0 / 128;
    case DataType::nvfp4:
      return 0.5 + 1.0 / 16;
    case DataType::mxfp4:
    case DataType::mxfp4_mxfp8:
      return 0.5 + 1.0 / 32;
  }
  KVTIER_ASSERT(false, "every type has a size");
}

std::optional<DataType> plain_type(std::int64_t element_bytes) {
  switch (element_bytes) {
    case 4:
      return DataType::fp32;
    case 2:
      return DataType::bf16;
    case 1:
      return DataType::fp8;
    default:
      return std::nullopt;
  }
}

std::optional<DataType> type_of(const ProfileTable& table) {
  if (table.dtype) {
    return table.dtype;
  }
  const auto bytes = table.shape.find("element_bytes");
  return bytes == table.shape.end() ? std::nullopt : plain_type(bytes->second);
}

std::vector<ProfileCell> cells_of(const CellGrid& grid) {
  std::vector<ProfileCell> cells;
  std::vector<std::size_t> index(grid.at.size(), 0);
  for (const double microseconds : grid.microseconds) {
    if (microseconds > 0) {
      ProfileCell cell{.at = {},
                       .p25_seconds = microseconds * 1e-6,
                       .median_seconds = microseconds * 1e-6,
                       .p75_seconds = microseconds * 1e-6,
                       .n = 1};
      for (std::size_t axis = 0; axis < index.size(); ++axis) {
        cell.at.push_back(grid.at[axis][index[axis]]);
      }
      cells.push_back(std::move(cell));
    }
    for (std::size_t axis = index.size(); axis-- > 0;) {
      if (++index[axis] < grid.at[axis].size()) {
        break;
      }
      index[axis] = 0;
    }
  }
  return cells;
}

std::optional<CellGrid> compact_grid(const ProfileTable& table) {
  constexpr std::size_t kMostPlacesPerCell = 4;
  CellGrid grid{.at = std::vector<std::vector<std::int64_t>>(table.axes.size()),
                .microseconds = {}};
  if (table.cells.size() < 2 || table.axes.empty()) {
    return std::nullopt;
  }
  for (const ProfileCell& cell : table.cells) {
    if (cell.n != 1 || cell.disturbed != 0 || !cell.parts.empty() ||
        cell.p25_seconds != cell.median_seconds || cell.p75_seconds != cell.median_seconds) {
      return std::nullopt;
    }
    for (std::size_t axis = 0; axis < grid.at.size(); ++axis) {
      grid.at[axis].push_back(cell.at[axis]);
    }
  }
  std::size_t places = 1;
  for (std::vector<std::int64_t>& values : grid.at) {
    std::ranges::sort(values);
    values.erase(std::unique(values.begin(), values.end()), values.end());
    places *= values.size();
    if (places > kMostPlacesPerCell * table.cells.size()) {
      return std::nullopt;
    }
  }
  grid.microseconds.assign(places, 0);
  for (const ProfileCell& cell : table.cells) {
    std::size_t place = 0;
    for (std::size_t axis = 0; axis < grid.at.size(); ++axis) {
      const auto found = std::ranges::lower_bound(grid.at[axis], cell.at[axis]);
      place =
          place * grid.at[axis].size() + static_cast<std::size_t>(found - grid.at[axis].begin());
    }
    // Nine digits are more than any clock has, and read back as the same microseconds.
    grid.microseconds[place] = std::stod(fmt::format("{:.9g}", cell.median_seconds * 1e6));
  }
  return grid;
}

const char* to_string(OperationId operation) {
  for (const auto& [name, value] : enum_names(operation)) {
    if (value == operation) {
      return name;
    }
  }
  KVTIER_ASSERT(false, "every operation has a name");
}

std::span<const ProfileOperation> profile_operations() {
  static const std::vector<ProfileOperation> kOperations = make_operations();
  return kOperations;
}

const ProfileOperation& profile_operation(OperationId id) {
  return profile_operations()[static_cast<std::size_t>(id)];
}

bool at_least_as_large(const std::vector<std::int64_t>& larger,
                       const std::vector<std::int64_t>& smaller) {
  return std::ranges::equal(larger, smaller, std::greater_equal());
}

bool contradicts(const ProfileCell& larger, const ProfileCell& smaller) {
  return at_least_as_large(larger.at, smaller.at) &&
         larger.median_seconds < kLeastShareOfSmallerWork * smaller.median_seconds;
}

void check_profile(const Profile& profile, Problems& problems) {
  if (profile.format != kProfileFormat) {
    report_format(profile.format, "FILE", problems);
    return;
  }
  for (std::size_t i = 0; i < profile.tables.size(); ++i) {
    check_table(profile.tables[i], fmt::format("/tables/{}", i), problems);
  }
}

Json convert_profile(Json old, const std::string& origin) {
  const auto text_at = [](const Json& object, const char* key) {
    return object.is_object() && object.contains(key) && object[key].is_string()
               ? object[key].get<std::string>()
               : std::string();
  };
  if (!is_old_format(text_at(old, "format"))) {
    Problems problems;
    problems.set_origin("", origin);
    problems.add("/format",
                 fmt::format("expected one of {}, got {}", fmt::join(kOldFormats, ", "),
                             old.is_object() && old.contains("format") ? quote_json(old["format"])
                                                                       : "none"));
    problems.throw_if_any();
  }
  old["format"] = kProfileFormat;
  bool has_loops = false;
  if (old.contains("tables") && old["tables"].is_array()) {
    for (Json& table : old["tables"]) {
      if (const auto renamed = renamed_operation(text_at(table, "operation"))) {
        table["operation"] = to_string(*renamed);
      }
      if (const std::string variant = text_at(table, "variant"); !variant.empty()) {
        table["variant"] = renamed_variant(text_at(table, "operation"), variant);
        has_loops = has_loops || (table["variant"] == kDecodeWarm && table.contains("cells") &&
                                  !table["cells"].empty());
      }
    }
  }
  if (has_loops && old.contains("provenance") && old["provenance"].is_object()) {
    Json& notes = old["provenance"]["notes"];
    if (notes.is_null() || notes.is_array()) {
      notes.push_back(
          fmt::format("{}{} was measured in a loop, not after prefills of other requests",
                      kConvertedNote, kDecodeWarm));
    }
  }
  return old;
}

Profile profile_from_json(const Json& json, const std::string& origin) {
  Problems problems;
  problems.set_origin("", origin);
  Profile profile;
  // Only the format of a file of another version is checked.
  if (json.is_object() && json.contains("format") && json["format"].is_string() &&
      json["format"] != kProfileFormat) {
    report_format(json["format"].get<std::string>(), origin, problems);
    problems.throw_if_any();
  }
  Json content = json;
  if (content.is_object()) {
    content.erase(kSchemaKey);
  }
  read_value(profile, content, "", problems);
  if (problems.empty()) {
    expand_grids(profile, problems);
  }
  if (problems.empty()) {
    check_profile(profile, problems);
  }
  problems.throw_if_any();
  return profile;
}

Profile read_profile(const std::filesystem::path& path) {
  return profile_from_json(parse_json_strictly(read_text_file(path), path.string()), path.string());
}

namespace {

/// The times of the last axis on a line each.
void append_grid(std::string& text, const CellGrid& grid) {
  text += "      \"grid\": {\n        \"at\": [";
  for (std::size_t axis = 0; axis < grid.at.size(); ++axis) {
    text += fmt::format("{}[{}]", axis == 0 ? "" : ", ", fmt::join(grid.at[axis], ","));
  }
  text += "],\n        \"microseconds\": [";
  const std::size_t width = grid.at.back().size();
  for (std::size_t i = 0; i < grid.microseconds.size(); ++i) {
    text += fmt::format("{}{}{:.9g}", i == 0 ? "" : ",", i % width == 0 ? "\n          " : "",
                        grid.microseconds[i]);
  }
  text += "\n        ]\n      },\n";
}

}  // namespace

std::string profile_text(const Profile& profile, CellLayout layout) {
  Profile head = profile;
  head.tables.clear();
  Json json = write_value(head);
  json.erase("tables");
  std::string text = json_text(json, 2);
  text.erase(text.size() - 2);  // "\n}"
  text += ",\n  \"tables\": [";
  const auto append_lines = [&text](const char* key, const auto& items, bool last) {
    text += fmt::format("      \"{}\": [", key);
    for (std::size_t i = 0; i < items.size(); ++i) {
      Json item = write_value(items[i]);
      if (item.contains("parts") && item["parts"].empty()) {
        item.erase("parts");
      }
      text += fmt::format("{}\n        {}", i == 0 ? "" : ",", json_text(item));
    }
    text += items.empty() ? "]" : "\n      ]";
    text += last ? "\n" : ",\n";
  };
  for (std::size_t i = 0; i < profile.tables.size(); ++i) {
    const ProfileTable& table = profile.tables[i];
    text += i == 0 ? "\n    {\n" : ",\n    {\n";
    ProfileTable setting = table;
    setting.cells.clear();
    setting.left_out.clear();
    const Json written = write_value(setting);
    for (const auto& [key, value] : written.items()) {
      const bool is_unset = value.is_string() && value == "none";
      if (key != "cells" && key != "grid" && key != "left_out" && !(key == "dtype" && is_unset)) {
        text += fmt::format("      \"{}\": {},\n", key, json_text(value));
      }
    }
    if (const auto grid = layout == CellLayout::grids ? compact_grid(table) : std::nullopt) {
      append_grid(text, *grid);
    } else {
      append_lines("cells", table.cells, false);
    }
    append_lines("left_out", table.left_out, true);
    text += "    }";
  }
  text += profile.tables.empty() ? "]\n}\n" : "\n  ]\n}\n";
  return text;
}

void write_profile(const std::filesystem::path& path, const Profile& profile) {
  AtomicFile file(path);
  file.write(profile_text(profile));
  file.commit();
}

Profile overlay(Profile own, const Profile& rest) {
  const auto kind_of = [](const ProfileTable& table) {
    using enum OperationId;
    const OperationId operation = table.operation;
    const bool is_attention = operation == prefill_attention || operation == decode_attention;
    const bool has_variant =
        operation == all_reduce || operation == mla_prefill || operation == mla_decode;
    std::map<std::string, std::int64_t> shape = table.shape;
    if (is_attention) {
      std::erase_if(shape, [](const auto& size) {
        return size.first != "head_dim" && size.first != "window";
      });
    } else if (has_variant) {
      shape.clear();
    }
    return std::tuple(operation, has_variant ? table.variant : "", table.dtype, std::move(shape));
  };
  std::set<decltype(kind_of(own.tables.front()))> kinds;
  for (const ProfileTable& table : own.tables) {
    kinds.insert(kind_of(table));
  }
  std::ranges::copy_if(rest.tables, std::back_inserter(own.tables),
                       [&](const ProfileTable& table) { return !kinds.contains(kind_of(table)); });
  return own;
}

std::vector<const ProfileTable*> find_tables(const Profile& profile, OperationId operation,
                                             std::optional<std::string_view> variant) {
  std::vector<const ProfileTable*> found;
  for (const ProfileTable& table : profile.tables) {
    if (table.operation == operation && (!variant || table.variant == *variant)) {
      found.push_back(&table);
    }
  }
  return found;
}

}  // namespace kvtier
