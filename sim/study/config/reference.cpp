#include "sim/study/config/reference.hpp"

#include <algorithm>
#include <array>
#include <iterator>
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

/// The keys of the objects that several keys of /hardware hold.
std::string objects_of_hardware() {
  ServiceCurve curve;
  return "\n#### Service curves\n\nEach way of a link or drive is a rate, or an object with these "
         "keys. The first `depth` bytes of a transfer move at the rate `alone`, the others at "
         "`rate`. `/hardware/ssd/bandwidth/load` has no `rate`.\n\n" +
         table(rows_of("", ServiceCurveKeys{curve})) +
         "\n#### Contention\n\nThe items of `/hardware/contention`:\n\n" +
         table(rows_of("", Contention()));
}

/// A section of the config: its keys, and the text after their table.
struct ReferenceSection {
  std::string name;
  std::vector<Row> rows;
  std::string rest{};
};

std::vector<ReferenceSection> all_sections(const PolicyRegistry& registry) {
  const RunConfig defaults;
  return {{"workload", rows_of("/workload", defaults.workload)},
          {"serving", rows_of("/serving", defaults.serving)},
          {"cluster", rows_of("/cluster", defaults.cluster)},
          {"system", rows_of("/system", defaults.system),
           "\n#### Policies\n\n" + policy_table(registry)},
          {"hardware", rows_of("/hardware", defaults.hardware), objects_of_hardware()},
          {"model", rows_of("/model", defaults.model)},
          {"seed",
           {{"/seed", accepted<std::int64_t>(non_negative()), fmt::format("`{}`", defaults.seed),
             "Master seed of every random stream."}}}};
}

std::string start_here(const std::vector<ReferenceSection>& sections) {
  std::vector<Row> start;
  for (const ReferenceSection& section : sections) {
    std::ranges::copy_if(section.rows, std::back_inserter(start),
                         [](const Row& row) { return starts_here(row.pointer); });
  }
  KVTIER_ASSERT(start.size() == kStartHere.size(), "every key to start with exists");
  return "### Start here\n\nA first config names a `/model`, a `/hardware` and a `/system` by "
         "their "
         "presets and sets some of these keys. The tables below have them in bold.\n\n" +
         table(start);
}

}  // namespace

std::string config_reference(const std::string& which, const PolicyRegistry& registry) {
  const bool is_run = which == "run";
  if (!is_run && which != "model" && which != "hardware" && which != "system") {
    throw ConfigError(
        fmt::format("schema: expected one of run, model, hardware, system, got \"{}\"", which));
  }
  const std::vector<ReferenceSection> sections = all_sections(registry);
  std::string text = is_run ? start_here(sections) : "";
  for (const ReferenceSection& section : sections) {
    if (is_run || section.name == which) {
      text += fmt::format("{}### /{}\n\n{}{}", is_run ? "\n" : "", section.name,
                          table(section.rows), section.rest);
    }
  }
  return text;
}

}  // namespace kvtier
