#include "sim/serving/cluster_config.hpp"

namespace kvtier {

void read_config(InstanceHardware& hardware, const Json& json, const std::string& pointer,
                 Problems& problems) {
  read_value(hardware.config, json, pointer, problems);
}

Json write_config(const InstanceHardware& hardware) { return write_value(hardware.config); }

/// The keys are those of /hardware, which the schema lists once.
Json config_schema(const InstanceHardware&) { return Json{{"type", {"string", "object"}}}; }

}  // namespace kvtier
