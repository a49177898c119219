#pragma once

#include <cstddef>
#include <vector>

namespace kvtier {

/// Makes a vector longer. It is not inlined, so that it takes no registers of a caller that seldom
/// grows.
template <class Value>
[[gnu::noinline]] void grow(std::vector<Value>& values, std::size_t size,
                            const Value& value = Value()) {
  values.resize(size, value);
}

}  // namespace kvtier
