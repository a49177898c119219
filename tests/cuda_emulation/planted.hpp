#pragma once

namespace kvtier::emulation {

/// Whether the test turned this planted fault on; numbers are from 1 on.
[[nodiscard]] bool planted(int number);
/// Names of the module's faults, ended by a null.
extern const char* const planted_names[];

}  // namespace kvtier::emulation
