#include "sim/study/config/resolve.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <iterator>
#include <memory>

#include <fmt/format.h>

#include "hw/model/model.hpp"
#include "hw/profile/described_gpu.hpp"
#include "hw/profile/profile_hardware.hpp"
#include "hw/profile/sibling.hpp"
#include "sim/core/assert.hpp"
#include "sim/core/file.hpp"
#include "sim/core/text.hpp"
#include "traces/tokenizer.hpp"

namespace kvtier {
namespace {

constexpr const char* kPresetKey = "preset";
constexpr const char* kSchemaKey = "$schema";
constexpr const char* kPolicyKey = "policy";
constexpr const char* kProfileKey = "profile";
constexpr const char* kHardwareProfile = "/hardware/profile";
constexpr const char* kHardwareGpus = "/hardware/gpus";

/// A section of the config that may name a preset, and the folder its presets are in.
struct Section {
  const char* key;
  const char* kind;
};
constexpr std::array<Section, 3> kSections{
    {{"model", "models"}, {"hardware", "hardware"}, {"system", "systems"}}};

std::vector<std::string> split_pointer(const std::string& pointer) {
  std::vector<std::string> parts;
  std::size_t begin = 1;
  while (begin <= pointer.size()) {
    const std::size_t end = std::min(pointer.find('/', begin), pointer.size());
    std::string part = pointer.substr(begin, end - begin);
    for (std::size_t at = 0; (at = part.find('~', at)) != std::string::npos; ++at) {
      const bool slash = at + 1 < part.size() && part[at + 1] == '1';
      part.replace(at, 2, slash ? "/" : "~");
    }
    parts.push_back(std::move(part));
    begin = end + 1;
  }
  return parts;
}

constexpr const char* kRateKey = "rate";

bool is_rate(const Json& value) {
  return value.is_string() && parse_quantity<BytesPerSecond>(value.get_ref<const std::string&>());
}

/// Merges `changes` into `base`, key by key. A policy, or a value that is no object, replaces the
/// old value. A plain rate is the rate of a service curve if `changes` has keys of one.
void merge(Json& base, const Json& changes, const std::string& pointer, const std::string& origin,
           Problems& problems) {
  constexpr std::array kCurveKeys{"latency", "alone", "depth"};
  if (changes.is_object() && is_rate(base) &&
      std::ranges::any_of(kCurveKeys, [&](const char* key) { return changes.contains(key); })) {
    base = Json{{kRateKey, base}};
    problems.set_origin(pointer, origin);
  }
  const bool replaces = !changes.is_object() || !base.is_object() || changes.contains(kPolicyKey);
  if (replaces) {
    base = changes;
    problems.set_origin(pointer, origin);
    return;
  }
  for (const auto& [key, value] : changes.items()) {
    const std::string below = pointer + "/" + escape_pointer(key);
    if (base.contains(key)) {
      merge(base[key], value, below, origin, problems);
    } else {
      base[key] = value;
      problems.set_origin(below, origin);
    }
  }
}

void apply(Json& root, const Override& change, const std::string& origin, Problems& problems) {
  const std::vector<std::string> parts = split_pointer(change.pointer);
  constexpr std::size_t kMostKeys = 100;  // each key adds a level of nesting
  if (parts.size() > kMostKeys) {
    problems.add_line(fmt::format("{}: expected a JSON pointer of at most {} keys, got {}", origin,
                                  kMostKeys, parts.size()));
    return;
  }
  Json* at = &root;
  std::string pointer;
  for (const std::string& part : parts) {
    if (at->is_array()) {
      std::size_t index = 0;
      const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), index);
      if (error != std::errc() || end != part.data() + part.size() || index >= at->size()) {
        problems.add_line(fmt::format("{}: {}: {} is not an index of the list at {}", origin,
                                      change.pointer, part, pointer));
        return;
      }
      at = &(*at)[index];
    } else {
      if (!at->is_object() && !at->is_null()) {
        // "none" becomes an empty object, a rate the rate of a service curve, and another text the
        // name of a policy, or of the hardware of a group.
        if (!at->is_string()) {
          problems.add_line(fmt::format("{}: {}: {} holds {}, which has no keys", origin,
                                        change.pointer, pointer, quote_json(*at)));
          return;
        }
        const std::string word = at->get<std::string>();
        const char* key = pointer.ends_with("/hardware") ? kPresetKey
                          : is_rate(*at)                 ? kRateKey
                                                         : kPolicyKey;
        *at = word == "none" ? Json::object() : Json{{key, word}};
      }
      if (!at->contains(part)) {
        problems.set_origin(pointer + "/" + escape_pointer(part), origin);
      }
      at = &(*at)[part];
    }
    pointer += "/" + escape_pointer(part);
  }
  *at = change.value;
  problems.set_origin(change.pointer, origin);
}

/// The presets, and the files of presets and profiles that were found.
struct Lookup {
  const ConfigDirectory& presets;
  ConfigFiles& contents;
  std::vector<std::string> files{};
};

/// Whether a preset's name is the path of a file, such as a Hugging Face config.json.
bool names_a_file(const std::string& name) {
  return name.find('/') != std::string::npos || (name.size() > 5 && name.ends_with(".json"));
}

/// The path of a preset's file. nullopt after reporting a problem. Throws DeviceError if the file
/// cannot be looked up.
std::optional<std::filesystem::path> find_preset(const std::string& kind, const std::string& name,
                                                 const std::filesystem::path& base_dir,
                                                 Lookup& lookup, const std::string& pointer,
                                                 Problems& problems) {
  const bool by_path = names_a_file(name);
  const std::filesystem::path path = by_path ? base_dir / name : lookup.presets.file(kind, name);
  if (is_file(path)) {
    lookup.files.push_back(path.string());
    return path;
  }
  const std::vector<std::string> known = lookup.presets.names(kind);
  problems.add(pointer, by_path || known.empty()
                            ? fmt::format("no such file: {}", path.string())
                            : fmt::format("expected one of {}, or the path of a file, got {}{}",
                                          detail::join(known, ", "), quote_text(name),
                                          suggestion(name, known)));
  return std::nullopt;
}

/// Profiles of engines go with the profile beside them: another one has none.
void drop_engine_profiles(Json& base, const Json& changes) {
  if (changes.contains(kProfileKey) && !changes.contains("engine_profiles")) {
    base.erase("engine_profiles");
  }
}

/// The preset as a JSON object, merged over the preset that it builds on. nullopt after reporting a
/// problem. `chain` has the presets that build on this one.
std::optional<Json> load_preset(const Section& section, const std::string& name,
                                const std::filesystem::path& base_dir, Lookup& lookup,
                                const std::string& pointer, Problems& problems,
                                std::vector<std::string> chain = {}) {
  const std::optional<std::filesystem::path> found =
      find_preset(section.kind, name, base_dir, lookup, pointer, problems);
  if (!found) {
    return std::nullopt;
  }
  const std::filesystem::path& path = *found;
  const std::string file = path.lexically_normal().string();
  const bool is_cycle = std::ranges::find(chain, file) != chain.end();
  chain.push_back(file);
  if (is_cycle) {
    problems.add(pointer, fmt::format("expected presets that do not build on themselves, got {}",
                                      fmt::join(chain, " -> ")));
    return std::nullopt;
  }
  try {
    Json json = lookup.contents.json(path);
    if (std::string_view(section.key) == "model" && looks_like_hugging_face(json)) {
      json = write_value(model_from_hugging_face(json, path.string()));
    }
    const auto base_name = json.find(kPresetKey);
    if (base_name == json.end()) {
      problems.set_origin(pointer, path.string());
      return json;
    }
    if (!base_name->is_string()) {
      problems.add_line(fmt::format("{}: /{}: expected a preset's name, got {}", path.string(),
                                    kPresetKey, quote_json(*base_name)));
      return std::nullopt;
    }
    std::optional<Json> base = load_preset(section, base_name->get<std::string>(),
                                           path.parent_path(), lookup, pointer, problems, chain);
    if (base) {
      json.erase(kPresetKey);
      drop_engine_profiles(*base, json);
      merge(*base, json, pointer, path.string(), problems);
    }
    return base;
  } catch (const ConfigError& error) {
    for (const std::string& line : error.problems()) {
      problems.add_line(line);
    }
    return std::nullopt;
  }
}

/// The profile, or null after reporting a problem.
std::shared_ptr<const Profile> load_profile(const std::string& name,
                                            const std::filesystem::path& base_dir, Lookup& lookup,
                                            const std::string& pointer, Problems& problems) {
  const std::optional<std::filesystem::path> path =
      find_preset("profiles", name, base_dir, lookup, pointer + "/" + kProfileKey, problems);
  if (!path) {
    return nullptr;
  }
  try {
    return lookup.contents.profile(*path);
  } catch (const ConfigError& error) {
    for (const std::string& line : error.problems()) {
      problems.add_line(line);
    }
    return nullptr;
  }
}

/// Replaces a section that names a preset by the preset's content, with the section's own keys
/// merged over it. Returns false after reporting a problem; the section is then unusable.
bool expand_section(Json& root, const Section& section, const std::string& origin,
                    const std::filesystem::path& base_dir, Lookup& lookup, Problems& problems,
                    const std::string& parent = "") {
  const std::string pointer = parent + "/" + section.key;
  if (!root.contains(section.key)) {
    return true;  // the reader reports what is missing
  }
  Json& given = root[section.key];
  if (given.is_string()) {
    given = Json{{kPresetKey, given}};
  }
  if (!given.is_object() || !given.contains(kPresetKey)) {
    return true;
  }
  const Json name = given[kPresetKey];
  if (!name.is_string()) {
    problems.add(pointer + "/" + kPresetKey, "expected a preset's name, got " + quote_json(name));
    return false;
  }
  std::optional<Json> preset =
      load_preset(section, name.get<std::string>(), base_dir, lookup, pointer, problems);
  if (!preset) {
    return false;
  }
  given.erase(kPresetKey);
  merge(*preset, given, pointer, origin, problems);
  given = std::move(*preset);
  return true;
}

/// Reads a model and checks it if it could be read. `problems` must be empty before the call.
ModelConfig read_model(const Json& json, const std::string& pointer, Problems& problems) {
  ModelConfig model;
  read_value(model, json, pointer, problems);
  if (problems.empty()) {
    check_model(model, pointer, problems);
  }
  return model;
}

/// The size in which KV is copied: 32 tokens of one layer on one of `gpus`. An assumption: runs are
/// at least a block of 16 tokens, and at most a whole entry.
/// nullopt if the model cannot be read; its errors are reported elsewhere.
std::optional<Bytes> kv_piece(const Json& root, std::int64_t gpus) {
  const auto found = root.find("model");
  if (found == root.end() || !found->is_object()) {
    return std::nullopt;
  }
  constexpr std::int64_t kCopiedTokens = 32;
  Problems problems;
  const ModelConfig model = read_model(*found, "/model", problems);
  return problems.empty() ? std::optional(std::max(
                                Bytes(1), kCopiedTokens * kv_bytes_per_token_layer(model) / gpus))
                          : std::nullopt;
}

/// The number of GPUs after the overrides. 1 if it cannot be read; its errors are reported
/// elsewhere.
std::int64_t gpus_of(const Json& hardware, const std::vector<Override>& overrides) {
  Json gpus = hardware.contains("gpus") ? hardware["gpus"] : Json(1);
  for (const Override& change : overrides) {
    if (change.pointer == kHardwareGpus) {
      gpus = change.value;
    }
  }
  return gpus.is_number_integer() ? std::max<std::int64_t>(1, gpus.get<std::int64_t>()) : 1;
}

/// A profile, or null, and the hardware as its preset describes it. Without a preset that is the
/// whole section of the file.
struct ProfiledHardware {
  std::shared_ptr<const Profile> profile;
  Json described;
};

/// The times of a run are those of this profile, or follow from them. Tables of the engine's own
/// kernels replace those of the profile.
void attach(HardwareConfig& hardware, std::shared_ptr<const Profile> profile,
            const std::optional<EngineConfig>& engine, const std::filesystem::path& base_dir,
            Lookup& lookup, const std::string& pointer, Problems& problems) {
  if (!hardware.profile || !profile) {
    return;
  }
  const auto own =
      engine ? hardware.engine_profiles.find(engine->kernels) : hardware.engine_profiles.end();
  if (own != hardware.engine_profiles.end()) {
    if (const auto of_engine = load_profile(own->second, base_dir, lookup, pointer, problems)) {
      profile = lookup.contents.overlaid(of_engine, profile);
    }
  }
  hardware.profile->loaded = hardware.sibling ? scale_to(hardware, *profile) : std::move(profile);
}

/// Expands /hardware as `expand_section` does, and merges the values of the profile that it names.
/// Measured values override the preset, and the config's own keys override both. Without a preset
/// the profile describes the whole server.
ProfiledHardware expand_hardware(Json& root, const Section& section, const std::string& origin,
                                 const std::filesystem::path& base_dir, Lookup& lookup,
                                 const std::vector<Override>& overrides, Problems& problems,
                                 bool& usable, const std::string& parent = "") {
  Json own = root.contains(section.key) ? root[section.key] : Json();
  usable = expand_section(root, section, origin, base_dir, lookup, problems, parent);
  if (!usable || !root.contains(section.key) || !root[section.key].is_object() ||
      !root[section.key].contains(kProfileKey)) {
    return {};
  }
  Json& hardware = root[section.key];
  const Json name = hardware[kProfileKey];
  if (!name.is_string() || name == "none") {
    return {};  // the reader reports a value that is no name
  }
  const std::string pointer = parent + "/" + section.key;
  std::shared_ptr<const Profile> profile =
      load_profile(name.get<std::string>(), base_dir, lookup, pointer, problems);
  if (!profile) {
    usable = false;
    return {};
  }
  const std::string source = "profile " + profile->name;
  const bool has_preset = own.is_string() || own.contains(kPresetKey);
  const std::optional<Bytes> piece = kv_piece(root, gpus_of(hardware, overrides));
  Json base = has_preset ? hardware : lookup.contents.hardware(*profile, piece, true);
  if (has_preset) {
    Json measured = lookup.contents.hardware(*profile, piece, false);
    if (!base.contains("ssd") || !base["ssd"].is_object()) {
      measured.erase("ssd");
    }
    merge(base, measured, pointer, source, problems);
  } else {
    problems.set_origin(pointer, source);
  }
  Json described;
  if (has_preset) {
    const Json& preset = own.is_string() ? own : own[kPresetKey];
    Problems reported;
    described =
        *load_preset(section, preset.get<std::string>(), base_dir, lookup, pointer, reported);
  }
  if (own.is_object()) {
    own.erase(kPresetKey);
    drop_engine_profiles(base, own);
    merge(base, own, pointer, origin, problems);
  }
  hardware = std::move(base);
  return {.profile = std::move(profile), .described = has_preset ? std::move(described) : hardware};
}

/// Adds the files and folders that a workload reads.
void add_workload_files(const WorkloadConfig& config, const std::filesystem::path& base_dir,
                        std::vector<std::string>& files) {
  if (config.trace) {
    files.push_back((base_dir / *config.trace).string());
  }
  if (config.tokenizer && !is_chars_tokenizer(*config.tokenizer)) {
    files.push_back((base_dir / *config.tokenizer).string());
  }
  for (const MixMember& member : config.mix) {
    add_workload_files(*member.workload, base_dir, files);
  }
}

/// Reports what check_replaced_rates does of hardware that was read from a config.
void check_described(const ModelConfig& model, const ProfiledHardware& from,
                     const HardwareConfig& hardware, Problems& problems) {
  HardwareConfig described;
  Problems unreadable;
  read_value(described, from.described, "", unreadable);
  if (unreadable.empty()) {
    check_replaced_rates(model, described, hardware, problems);
  }
}

/// Expands the hardware of each of /cluster/groups.
std::vector<ProfiledHardware> expand_groups(Json& root, const std::string& origin,
                                            const std::filesystem::path& base_dir, Lookup& lookup,
                                            Problems& problems) {
  std::vector<ProfiledHardware> expanded;
  const Section& hardware = *std::find_if(kSections.begin(), kSections.end(), [](const Section& s) {
    return std::string_view(s.key) == "hardware";
  });
  const Json::json_pointer groups("/cluster/groups");
  if (!root.contains(groups) || !root[groups].is_array()) {
    return expanded;  // the reader reports what is wrong
  }
  for (std::size_t i = 0; i < root[groups].size(); ++i) {
    Json& group = root[groups][i];
    expanded.emplace_back();
    if (!group.is_object() || !group.contains("hardware") || group["hardware"] == "same") {
      continue;
    }
    bool usable = true;
    if (root.contains("model")) {
      group["model"] = root["model"];  // KV is copied in pieces of the model
    }
    expanded.back() = expand_hardware(group, hardware, origin, base_dir, lookup, {}, problems,
                                      usable, fmt::format("/cluster/groups/{}", i));
    group.erase("model");
    if (!usable) {
      group.erase("hardware");  // its problem is reported
    }
  }
  return expanded;
}

bool is_section(const std::string& pointer) {
  return std::any_of(kSections.begin(), kSections.end(), [&](const Section& section) {
    return pointer == std::string("/") + section.key;
  });
}

bool is_in(const Section& section, const std::string& pointer) {
  return pointer.starts_with(std::string("/") + section.key + "/");
}

/// The schema without required keys, at any depth, because a preset supplies the missing keys.
/// Policies stay whole, because a policy replaces another one with its parameters.
Json partial_schema(Json schema) {
  if (!schema.is_object()) {
    return schema;
  }
  const auto closed = schema.find("additionalProperties");
  if (closed != schema.end() && *closed == false && schema.contains("properties")) {
    schema.erase("required");
    for (auto& [key, value] : schema["properties"].items()) {
      value = partial_schema(value);
    }
  }
  if (schema.contains("anyOf")) {
    for (Json& choice : schema["anyOf"]) {
      choice = partial_schema(choice);
    }
  }
  return schema;
}

/// The schema of a preset's file: a whole section, or changes to the preset that it builds on.
Json preset_schema(Json whole) {
  Json changes = partial_schema(whole);
  changes["properties"][kPresetKey] = Json{{"type", "string"}};
  changes["required"] = Json::array({kPresetKey});
  for (Json* schema : {&whole, &changes}) {
    (*schema)["properties"][kSchemaKey] = Json{{"type", "string"}};
  }
  return Json{{"anyOf", Json::array({whole, changes})}};
}

}  // namespace

Json read_json_file(const std::filesystem::path& path) {
  Json json = parse_json_strictly(read_text_file(path), path.string());
  if (!json.is_object()) {
    throw ConfigError(
        fmt::format("{}: /: expected an object, got {}", path.string(), quote_json(json)));
  }
  json.erase(kSchemaKey);
  return json;
}

ResolvedConfig resolve_config(const ConfigRequest& request, const ConfigDirectory& presets,
                              const PolicyRegistry& registry) {
  for (const char* extension : {".jsonl", ".csv", ".gz", ".zst"}) {
    if (!request.inline_config && request.file.extension() == extension) {
      throw ConfigError(
          fmt::format("{}: expected a config; a trace is named by the config's /workload/trace",
                      request.file.string()));
    }
  }
  const std::shared_ptr<ConfigFiles> files =
      request.files ? request.files : std::make_shared<ConfigFiles>();
  Json root = request.inline_config ? request.inline_config->json : files->json(request.file);
  const std::filesystem::path base_dir = request.file.parent_path();
  Lookup lookup{presets, *files};
  Problems problems(request.name_origins);
  const std::string origin =
      request.inline_config ? request.inline_config->origin : request.file.string();
  problems.set_origin("", origin);
  const auto set = [&](const Override& change) {
    apply(root, change, change.origin.empty() ? request.overrides_origin : change.origin, problems);
  };
  // A whole section is replaced before its preset is looked up, keys inside it after.
  for (const Override& change : request.overrides) {
    if (is_section(change.pointer)) {
      set(change);
    }
  }
  if (request.system) {
    root["system"] = *request.system;
    problems.set_origin("/system", "--systems");
  }
  // A profile is also replaced first, because the keys beside it get their values from it.
  for (const Override& change : request.overrides) {
    if (change.pointer == kHardwareProfile) {
      if (root.contains("hardware") && root["hardware"].is_string()) {
        root["hardware"] = Json{{kPresetKey, root["hardware"]}};
      }
      set(change);
    }
  }
  const auto set_keys = [&](const auto& counts) {
    for (const Override& change : request.overrides) {
      if (!is_section(change.pointer) && change.pointer != kHardwareProfile &&
          counts(change.pointer)) {
        set(change);
      }
    }
  };
  std::vector<std::string> unusable;
  ProfiledHardware profiled;
  for (const Section& section : kSections) {
    bool usable = true;
    if (std::string_view(section.key) == "hardware") {
      profiled = expand_hardware(root, section, origin, base_dir, lookup, request.overrides,
                                 problems, usable);
    } else {
      usable = expand_section(root, section, origin, base_dir, lookup, problems);
    }
    if (!usable) {
      unusable.emplace_back(section.key);
    }
    // The hardware values of a profile depend on the model's keys.
    set_keys([&section](const std::string& pointer) { return is_in(section, pointer); });
  }
  set_keys([](const std::string& pointer) {
    return std::ranges::none_of(kSections,
                                [&](const Section& section) { return is_in(section, pointer); });
  });
  const std::vector<ProfiledHardware> profiled_groups =
      expand_groups(root, origin, base_dir, lookup, problems);
  if (request.seed) {
    root["seed"] = *request.seed;
    problems.set_origin("/seed", "--seed");
  }
  // A section without its preset is removed. "missing key" would repeat the reported problem.
  const auto is_noise = [&](const std::string& line) {
    return std::any_of(unusable.begin(), unusable.end(), [&](const std::string& section) {
      return line.ends_with("/" + section + ": missing key");
    });
  };
  for (const std::string& section : unusable) {
    root.erase(section);
  }
  ResolvedConfig resolved;
  resolved.base_dir = base_dir;
  read_value(resolved.config, root, "", problems);
  const std::optional<EngineConfig>& engine = resolved.config.system.engine;
  attach(resolved.config.hardware, profiled.profile, engine, base_dir, lookup, "/hardware",
         problems);
  std::vector<InstanceGroupConfig>& groups = resolved.config.cluster.groups;
  for (std::size_t i = 0; i < std::min(groups.size(), profiled_groups.size()); ++i) {
    if (groups[i].hardware) {
      attach(groups[i].hardware->config, profiled_groups[i].profile, engine, base_dir, lookup,
             fmt::format("/cluster/groups/{}/hardware", i), problems);
    }
  }
  if (problems.empty()) {
    fit_context_window(resolved.config);
    check_run_config(resolved.config, registry, problems);
    const ModelConfig& model = resolved.config.model;
    check_described(model, profiled, resolved.config.hardware, problems);
    for (std::size_t i = 0; i < std::min(groups.size(), profiled_groups.size()); ++i) {
      if (groups[i].hardware) {
        Problems of_group;
        check_described(model, profiled_groups[i], groups[i].hardware->config, of_group);
        add_of_group(of_group, i, problems);
      }
    }
  }
  std::vector<std::string> lines;
  std::copy_if(problems.lines().begin(), problems.lines().end(), std::back_inserter(lines),
               [&](const std::string& line) { return !is_noise(line); });
  if (!lines.empty()) {
    throw ConfigError(std::move(lines));
  }
  KVTIER_ASSERT(unusable.empty(), "an unusable section has been reported");
  resolved.files = std::move(lookup.files);
  if (!request.file.empty()) {
    resolved.files.push_back(request.file.string());
  }
  add_workload_files(resolved.config.workload, base_dir, resolved.files);
  return resolved;
}

Json preset_json(const std::string& key, const std::string& name, const ConfigDirectory& presets) {
  const auto section = std::ranges::find(kSections, key, &Section::key);
  KVTIER_ASSERT(section != kSections.end(), "presets are of a section");
  ConfigFiles files;
  Lookup lookup{presets, files};
  Problems problems;
  std::optional<Json> json = load_preset(*section, name, {}, lookup, "/" + key, problems);
  problems.throw_if_any();
  return *std::move(json);
}

ModelConfig resolve_model(const std::string& name, const ConfigDirectory& presets,
                          const std::string& option) {
  ConfigFiles files;
  Lookup lookup{presets, files};
  Problems problems;
  const std::optional<Json> json = load_preset(kSections[0], name, "", lookup, option, problems);
  problems.throw_if_any();
  Problems found;
  found.set_origin("", name);
  ModelConfig model = read_model(*json, "", found);
  found.throw_if_any();
  return model;
}

HardwareConfig resolve_hardware(const Json& hardware, const ModelConfig& model,
                                const ConfigDirectory& presets) {
  ConfigFiles files;
  Lookup lookup{presets, files};
  Problems problems;
  Json root{{"model", write_value(model)}, {"hardware", hardware}};
  bool usable = true;
  const ProfiledHardware profiled =
      expand_hardware(root, kSections[1], "", {}, lookup, {}, problems, usable);
  HardwareConfig config;
  if (usable) {
    read_value(config, root["hardware"], "/hardware", problems);
  }
  if (problems.empty()) {
    check_hardware(config, "/hardware", problems);
  }
  problems.throw_if_any();
  attach(config, profiled.profile, {}, {}, lookup, "/hardware", problems);
  return config;
}

std::shared_ptr<const Profile> resolve_profile(const std::string& name,
                                               const ConfigDirectory& presets) {
  ConfigFiles files;
  Lookup lookup{presets, files};
  Problems problems;
  std::shared_ptr<const Profile> profile = load_profile(name, {}, lookup, "/hardware", problems);
  problems.throw_if_any();
  return profile;
}

ResolvedWorkload resolve_workload(const ConfigRequest& request) {
  Json root = read_json_file(request.file);
  Problems problems;
  problems.set_origin("", request.file.string());
  for (const Override& change : request.overrides) {
    apply(root, change, request.overrides_origin, problems);
  }
  ResolvedWorkload resolved;
  resolved.base_dir = request.file.parent_path();
  if (root.contains("workload")) {
    read_value(resolved.config, root["workload"], "/workload", problems);
  } else {
    problems.add("/workload", "missing key");
  }
  if (request.seed) {
    problems.set_origin("/seed", "--seed");
    read_value(resolved.seed, Json(*request.seed), "/seed", problems, seed_limits());
  } else if (root.contains("seed")) {
    read_value(resolved.seed, root["seed"], "/seed", problems, seed_limits());
  }
  if (problems.empty()) {
    check(resolved.config, "/workload", problems);
  }
  problems.throw_if_any();
  resolved.files.push_back(request.file.string());
  add_workload_files(resolved.config, resolved.base_dir, resolved.files);
  return resolved;
}

Json config_json_schema(const std::string& which) {
  RunConfig config;
  Json schema;
  if (which == "run") {
    schema = value_schema(config);
    for (const Section& section : kSections) {
      Json whole = schema["properties"][section.key];
      const Json description = whole["description"];
      whole.erase("description");
      Json overriding = partial_schema(whole);
      overriding["properties"][kPresetKey] = Json{{"type", "string"}};
      schema["properties"][section.key] =
          Json{{"description", description},
               {"anyOf", Json::array({Json{{"type", "string"}}, overriding})}};
    }
  } else if (which == "model") {
    schema = preset_schema(value_schema(config.model));
  } else if (which == "hardware") {
    schema = preset_schema(value_schema(config.hardware));
  } else if (which == "system") {
    schema = preset_schema(value_schema(config.system));
  } else if (which == "profile") {
    Profile profile;
    schema = value_schema(profile);
  } else {
    throw ConfigError(
        fmt::format("schema: expected one of run, model, hardware, system, profile, got {}",
                    quote_text(which)));
  }
  return file_schema(which, std::move(schema));
}

Json file_schema(const std::string& which, Json value) {
  if (value.contains("properties")) {
    value["properties"][kSchemaKey] = Json{{"type", "string"}};
  }
  Json result{{kSchemaKey, "https://json-schema.org/draft/2020-12/schema"},
              {"title", "kvtier " + which}};
  result.update(value);
  return result;
}

}  // namespace kvtier
