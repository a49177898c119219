#pragma once

namespace kvtier::emulation {

/// Whether the test turned this planted fault on; numbers are from 1 on.
[[nodiscard]] bool planted(int number);
/// Of the module, and a null behind them.
extern const char* const planted_names[];

}  // namespace kvtier::emulation
