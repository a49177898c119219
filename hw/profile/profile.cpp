#include "hw/profile/profile.hpp"

#include <algorithm>
#include <array>
#include <functional>
#include <set>

#include <fmt/format.h>

#include "sim/core/assert.hpp"
#include "sim/core/file.hpp"

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
       "causal attention of one request's new tokens to its past ones and themselves, one layer"},
      {decode_attention,
       {"batch", "context"},
       attention,
       {},
       true,
       "attention of one new token of each of batch requests to context tokens each, one layer"},
      {ragged_attention,
       {"case"},
       attention,
       {},
       false,
       "attention of a ragged batch, one layer; the cell's parts say which"},
      {elementwise,
       {"tokens"},
       rows,
       {"norm", "activation", "residual", "embedding", "sampling", "kv_write"},
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
       "one call: launch, event, stream_wait, copy_submit; after a pause hand_over, to another "
       "thread of the host, and transfer, a small copy by such a thread, which tells of its end"},
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
       "reading one block, with so many in flight: seconds over blocks; after_pause: of a drive "
       "that has had nothing to do for a while"},
      {drive_write,
       block,
       {},
       {"burst", kAfterPause, "sustained"},
       false,
       "writing one block, with so many in flight: seconds over blocks; after_pause as in "
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
       "drive to pinned memory to device, all of bytes; after_pause as in drive_read, and in "
       "pieces of KV"},
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
       {kStep, kPrefillSecond, kPrefillRun, kDecodeRun},
       false,
       "a whole model, from tokens to tokens: each of so many requests computes new tokens after "
       "past ones; step: after a pause, prefill_second: right after such a one, prefill_run and "
       "decode_run: one of several that follow each other"},
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
    const bool decodes = table.variant == kDecodeRun;
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
    problems.add(pointer + "/variant",
                 fmt::format("the variants of {} are {}, got \"{}\"{}", id,
                             fmt::join(operation.variants, ", "), table.variant,
                             suggestion(table.variant, operation.variants)));
  }
  std::set<std::string> shape(operation.shape.begin(), operation.shape.end());
  std::set<std::string> given;
  for (const auto& [key, value] : table.shape) {
    given.insert(key);
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

/// Names each old operation of the tables once.
void report_renamed(const Json& json, Problems& problems) {
  if (!json.contains("tables") || !json["tables"].is_array()) {
    return;
  }
  std::set<std::string> reported;
  const Json& tables = json["tables"];
  for (std::size_t i = 0; i < tables.size(); ++i) {
    const Json* operation = tables[i].is_object() && tables[i].contains("operation") &&
                                    tables[i]["operation"].is_string()
                                ? &tables[i]["operation"]
                                : nullptr;
    const auto renamed = operation != nullptr
                             ? renamed_operation(operation->get_ref<const std::string&>())
                             : std::nullopt;
    if (renamed && reported.insert(operation->get<std::string>()).second) {
      problems.add(fmt::format("/tables/{}/operation", i),
                   fmt::format("\"{}\" is called \"{}\" now", operation->get<std::string>(),
                               to_string(*renamed)));
    }
  }
}

}  // namespace

std::optional<OperationId> renamed_operation(std::string_view old_name) {
  constexpr std::array kOldNames{"G1", "A1", "A2", "A3", "E1", "R1", "C1", "C2", "C3", "C4",
                                 "C5", "C6", "C7", "D1", "D2", "D3", "D4", "D5", "X1", "X2"};
  const auto* const found = std::ranges::find(kOldNames, old_name);
  if (found == kOldNames.end()) {
    return std::nullopt;
  }
  return static_cast<OperationId>(found - kOldNames.begin());
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
    problems.add("/format", fmt::format("expected \"{}\", got \"{}\": measure again, or use the "
                                        "release that wrote it",
                                        kProfileFormat, profile.format));
    return;
  }
  for (std::size_t i = 0; i < profile.tables.size(); ++i) {
    check_table(profile.tables[i], fmt::format("/tables/{}", i), problems);
  }
}

Profile profile_from_json(const Json& json, const std::string& origin) {
  Problems problems;
  problems.set_origin("", origin);
  Profile profile;
  // Only the format and the names of operations are checked in a file of another version.
  if (json.is_object() && json.contains("format") && json["format"].is_string() &&
      json["format"] != kProfileFormat) {
    profile.format = json["format"].get<std::string>();
    check_profile(profile, problems);
    report_renamed(json, problems);
    problems.throw_if_any();
  }
  Json content = json;
  if (content.is_object()) {
    content.erase(kSchemaKey);
  }
  read_value(profile, content, "", problems);
  if (problems.empty()) {
    check_profile(profile, problems);
  }
  problems.throw_if_any();
  return profile;
}

Profile read_profile(const std::filesystem::path& path) {
  return profile_from_json(parse_json_strictly(read_text_file(path), path.string()), path.string());
}

std::string profile_text(const Profile& profile) {
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
      if (key != "cells" && key != "left_out") {
        text += fmt::format("      \"{}\": {},\n", key, json_text(value));
      }
    }
    append_lines("cells", table.cells, false);
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
