#include "sim/core/build.hpp"

namespace kvtier {

const char* build_version() { return KVTIER_VERSION; }

Json new_result(const char* format) {
  return Json{{"format", format},
              {"build", {{"version", build_version()}, {"commit", build_commit()}}}};
}

}  // namespace kvtier
