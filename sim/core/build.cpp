#include "sim/core/build.hpp"

#include "kvtier_commit.hpp"

namespace kvtier {

const char* build_version() { return KVTIER_VERSION; }

const char* build_commit() { return KVTIER_COMMIT; }

Json new_result(const char* format) {
  return Json{{"format", format},
              {"build", {{"version", build_version()}, {"commit", build_commit()}}}};
}

}  // namespace kvtier
