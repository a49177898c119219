#pragma once

#include <stdexcept>
#include <string>

namespace kvtier {

/// A broken invariant of the program itself: a bug, never bad input. Thrown by KVTIER_ASSERT.
class InvariantError : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

namespace detail {
[[noreturn]] void assertion_failed(const char* condition, const char* message, const char* file,
                                   int line);
}  // namespace detail

}  // namespace kvtier

/// Checks an invariant in every build type; throws kvtier::InvariantError.
#define KVTIER_ASSERT(condition, message)                                          \
  do {                                                                             \
    if (!(condition)) [[unlikely]] {                                               \
      ::kvtier::detail::assertion_failed(#condition, message, __FILE__, __LINE__); \
    }                                                                              \
  } while (false)
