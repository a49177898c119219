#include "sim/study/config/reference.hpp"

#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "sim/core/assert.hpp"
#include "sim/serving/config.hpp"

namespace kvtier {
namespace {

struct Row {
  std::string pointer;
  std::string accepted;
  std::string default_text;
  std::string meaning;
};

/// The keys that a first config sets besides its presets.
constexpr std::array<std::string_view, 25> kStartHere{
    "/workload/generator",
    "/workload/trace",
    "/workload/format",
    "/workload/sessions",
    "/workload/arrivals",
    "/workload/arrival_rate",
    "/workload/speed_up",
    "/workload/think_time/mean",
    "/serving/slots",
    "/serving/token_budget",
    "/serving/kv_memory",
    "/cluster/instances",
    "/cluster/router",
    "/system/batching",
    "/system/tiers/dram/eviction",
    "/system/tiers/dram/blocks/capacity",
    "/system/prefetch",
    "/hardware/gpus",
    "/hardware/gpu/price",
    "/hardware/dram/capacity",
    "/hardware/dram/price",
    "/hardware/ssd/capacity",
    "/hardware/ssd/price",
    "/hardware/profile",
    "/seed",
};

bool starts_here(const std::string& pointer) {
  return std::find(kStartHere.begin(), kStartHere.end(), pointer) != kStartHere.end();
}

std::string number_range(const char* noun, const Limits& limits) {
  if (limits.minimum && limits.maximum && !limits.minimum_excluded) {
    return fmt::format("{}, {} to {}", noun, *limits.minimum, *limits.maximum);
  }
  return noun + detail::limits_text(limits);
}

template <class T>
std::string quantity_range(const Limits& limits) {
  const QuantityFormat& format = quantity_format<T>();
  std::string text = format.noun;
  if (limits.minimum) {
    text += (limits.minimum_excluded ? " > " : " >= ") + detail::limit_text<T>(*limits.minimum);
  }
  if (limits.maximum) {
    text += (limits.minimum ? " and <= " : " <= ") + detail::limit_text<T>(*limits.maximum);
  }
  return text + fmt::format(", such as `\"{}\"`", format.example);
}

template <class T>
constexpr bool is_struct_v =
    !ConfigCustom<T> && !is_optional<T>::value && !std::is_arithmetic_v<T> &&
    !std::is_same_v<T, std::string> && !ConfigEnum<T> && !ConfigQuantity<T> &&
    !is_vector<T>::value && !is_string_map<T>::value;

template <class T>
std::string accepted(const Limits& limits) {
  if constexpr (is_optional<T>::value) {
    return accepted<typename T::value_type>(limits) +
           fmt::format(", or `\"{}\"`", limits.none_word);
  } else if constexpr (std::is_same_v<T, PolicyChoice>) {
    return "a policy";
  } else if constexpr (std::is_same_v<T, ProfileChoice>) {
    return "a profile";
  } else if constexpr (std::is_same_v<T, ServiceCurve>) {
    return accepted<BytesPerSecond>(bounds::link_rate()) + ", or a service curve";
  } else if constexpr (std::is_same_v<T, SessionCount>) {
    return "a whole number > 0, `\"all\"`, or `\"auto\"`";
  } else if constexpr (std::is_same_v<T, KvSize>) {
    return "a size of KV in bytes, tokens or blocks > 0";
  } else if constexpr (std::is_same_v<T, bool>) {
    return "true or false";
  } else if constexpr (std::is_integral_v<T>) {
    return number_range("a whole number", limits);
  } else if constexpr (std::is_floating_point_v<T>) {
    return number_range("a number", limits);
  } else if constexpr (std::is_same_v<T, std::string>) {
    return "a text";
  } else if constexpr (ConfigEnum<T>) {
    return "`\"" + detail::join(detail::enum_words<T>(), "\"`, `\"") + "\"`";
  } else if constexpr (ConfigQuantity<T>) {
    return quantity_range<T>(limits);
  } else if constexpr (is_vector<T>::value) {
    return "a list";
  } else {
    return "an object";
  }
}

/// Adds a row for each field of a struct. The fields of a nested struct follow its row.
class ReferenceWriter {
 public:
  ReferenceWriter(std::string pointer, std::vector<Row>& rows)
      : pointer_(std::move(pointer)), rows_(rows) {}

  template <class T>
  void field(const char* key, T& value, const char* documentation, Limits limits = {}) {
    const std::string pointer = pointer_ + "/" + escape_pointer(key);
    std::string default_text;
    if (limits.required) {
      default_text = "required";
    } else if constexpr (!is_struct_v<T>) {
      default_text = "`" + json_text(write_value(value, limits)) + "`";
    }
    rows_.push_back({pointer, accepted<T>(limits), default_text, documentation});
    descend(pointer, value);
  }
  template <class T>
  void rare(const char* key, T& value, const T& /*usual*/, const char* documentation,
            Limits limits = {}) {
    field(key, value, documentation, limits);
  }
  void gone(const char*, const char*) {}

 private:
  template <class T>
  void descend(const std::string& pointer, T& value) {
    if constexpr (is_optional<T>::value) {
      typename T::value_type inner{};
      descend(pointer, inner);
    } else if constexpr (is_struct_v<T>) {
      ReferenceWriter below(pointer, rows_);
      describe(below, value);
    }
  }

  std::string pointer_;
  std::vector<Row>& rows_;
};

std::string cell_text(const std::string& text) {
  std::string escaped;
  for (const char c : text) {
    escaped += c == '|' ? "\\|" : std::string(1, c);
  }
  return escaped;
}

std::string table(const std::vector<Row>& rows) {
  std::string text = "| key | value | default | meaning |\n|---|---|---|---|\n";
  for (const Row& row : rows) {
    const char* mark = starts_here(row.pointer) ? "**" : "";
    text +=
        fmt::format("| {0}`{1}`{0} | {2} | {3} | {4} |\n", mark, row.pointer,
                    cell_text(row.accepted), cell_text(row.default_text), cell_text(row.meaning));
  }
  return text;
}

template <class T>
std::vector<Row> rows_of(const std::string& pointer, T config) {
  std::vector<Row> rows;
  ReferenceWriter writer(pointer, rows);
  describe(writer, config);
  return rows;
}

template <class T>
std::string section(const std::string& pointer, T config) {
  return table(rows_of(pointer, std::move(config)));
}

std::string start_here(const RunConfig& defaults, const Row& seed) {
  std::vector<Row> all = rows_of("/workload", defaults.workload);
  const auto append = [&all](const std::vector<Row>& rows) {
    all.insert(all.end(), rows.begin(), rows.end());
  };
  append(rows_of("/serving", defaults.serving));
  append(rows_of("/cluster", defaults.cluster));
  append(rows_of("/system", defaults.system));
  append(rows_of("/hardware", defaults.hardware));
  all.push_back(seed);
  std::erase_if(all, [](const Row& row) { return !starts_here(row.pointer); });
  KVTIER_ASSERT(all.size() == kStartHere.size(), "every key to start with exists");
  return "### Start here\n\nA first config names a `/model`, a `/hardware` and a `/system` by "
         "their "
         "presets and sets some of these keys. The tables below have them in bold.\n\n" +
         table(all);
}

template <class Interface>
std::string policies(const char* where, const std::vector<PolicyKind<Interface>>& kinds) {
  std::string text;
  for (const PolicyKind<Interface>& kind : kinds) {
    std::string parameters;
    for (const PolicyParameter& parameter : kind.parameters) {
      parameters += fmt::format(
          "{}`{}`: {} ({} to {} {}, default {})", parameters.empty() ? "" : "; ", parameter.name,
          parameter.documentation, parameter.minimum, parameter.maximum, parameter.unit,
          parameter.default_value ? fmt::format("{}", *parameter.default_value) : "`\"auto\"`");
    }
    text += fmt::format("| {} | `\"{}\"` | {} | {} | {} |\n", where, kind.name,
                        to_string(kind.knowledge), cell_text(kind.summary), cell_text(parameters));
  }
  return text;
}

std::string policy_table(const PolicyRegistry& registry) {
  return "| key | policy | knowledge | idea | parameters |\n|---|---|---|---|---|\n" +
         policies("`/system/tiers/*/eviction`", registry.eviction) +
         policies("`/system/tiers/*/admission`", registry.admission) +
         policies("`/system/prefetch`", registry.prefetch) +
         policies("`/system/order`", registry.order) +
         policies("`/cluster/router`", registry.routing);
}

/// The keys of /hardware, and those of the objects that several of them hold.
std::string hardware_reference(const HardwareConfig& defaults) {
  ServiceCurve curve;
  return section("/hardware", defaults) +
         "\n#### Service curves\n\nEach way of a link or drive is a rate, or an object with these "
         "keys. The first `depth` bytes of a transfer move at the rate `alone`, the others at "
         "`rate`. `/hardware/ssd/bandwidth/load` has no `rate`.\n\n" +
         section("", ServiceCurveKeys{curve}) +
         "\n#### Contention\n\nThe items of `/hardware/contention`:\n\n" +
         section("", Contention());
}

}  // namespace

std::string config_reference(const std::string& which, const PolicyRegistry& registry) {
  const RunConfig defaults;
  const auto titled = [](const char* key, const std::string& text) {
    return fmt::format("### /{}\n\n{}", key, text);
  };
  const std::string model = section("/model", defaults.model);
  const std::string hardware = hardware_reference(defaults.hardware);
  const std::string system =
      section("/system", defaults.system) + "\n#### Policies\n\n" + policy_table(registry);
  if (which == "model") {
    return titled("model", model);
  }
  if (which == "hardware") {
    return titled("hardware", hardware);
  }
  if (which == "system") {
    return titled("system", system);
  }
  if (which != "run") {
    throw ConfigError(
        fmt::format("schema: expected one of run, model, hardware, system, got \"{}\"", which));
  }
  const Row seed{"/seed", accepted<std::int64_t>(non_negative()),
                 fmt::format("`{}`", defaults.seed), "Master seed of every random stream."};
  std::string text = start_here(defaults, seed);
  text += "\n" + titled("workload", section("/workload", defaults.workload));
  text += "\n" + titled("serving", section("/serving", defaults.serving));
  text += "\n" + titled("cluster", section("/cluster", defaults.cluster));
  text += "\n" + titled("system", system);
  text += "\n" + titled("hardware", hardware);
  text += "\n" + titled("model", model);
  text += "\n" + titled("seed", table({seed}));
  return text;
}

}  // namespace kvtier
