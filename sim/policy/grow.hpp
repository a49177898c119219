#pragma once

#include <cstddef>
#include <vector>

namespace kvtier {

/// Makes a vector longer. Apart, so that a caller that seldom does so needs no registers for it.
template <class Value>
[[gnu::noinline]] void grow(std::vector<Value>& values, std::size_t size,
                            const Value& value = Value()) {
  values.resize(size, value);
}

}  // namespace kvtier
