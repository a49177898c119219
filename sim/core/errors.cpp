#include "sim/core/errors.hpp"

#include <algorithm>
#include <numeric>

#include <fmt/format.h>

#include "sim/core/assert.hpp"
#include "sim/core/text.hpp"

namespace kvtier {
namespace {

/// Shortens lines that name huge keys or paths. The longest lists of known names are shorter.
const std::vector<std::string>& bound(std::vector<std::string>& lines) {
  constexpr std::size_t kLineBytesMax = 8192;
  for (std::string& line : lines) {
    if (line.size() > kLineBytesMax) {
      line = shortened(line, kLineBytesMax);
    }
  }
  return lines;
}

std::string join_lines(const std::vector<std::string>& lines) {
  std::string joined;
  for (const std::string& line : lines) {
    joined += (joined.empty() ? "" : "\n") + line;
  }
  return joined;
}

/// Levenshtein distance in which swapping two neighbours counts as one edit.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> before_previous;
  std::vector<std::size_t> previous(b.size() + 1);
  std::iota(previous.begin(), previous.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::vector<std::size_t> current(b.size() + 1, i);
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t substitute = previous[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      current[j] = std::min({previous[j] + 1, current[j - 1] + 1, substitute});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) {
        current[j] = std::min(current[j], before_previous[j - 2] + 1);
      }
    }
    before_previous = std::move(previous);
    previous = std::move(current);
  }
  return previous.back();
}

/// Whether the letters of `word` are in `candidate`, in this order.
bool has_letters_of(std::string_view candidate, std::string_view word) {
  std::size_t found = 0;
  for (const char c : candidate) {
    found += found < word.size() && word[found] == c ? 1 : 0;
  }
  return found == word.size();
}

}  // namespace

namespace detail {
void assertion_failed(const char* condition, const char* message, const char* file, int line) {
  throw InvariantError(
      fmt::format("{}:{}: broken invariant: {} ({})", file, line, message, condition));
}
}  // namespace detail

ConfigError::ConfigError(std::vector<std::string> problems)
    : std::runtime_error(join_lines(bound(problems))), problems_(std::move(problems)) {}

std::string_view closest_match(std::string_view word, const std::vector<std::string>& known) {
  std::string_view best;
  std::size_t best_distance = std::max<std::size_t>(1, word.size() / 3) + 1;
  for (const std::string& candidate : known) {
    // The beginning of a name is that name: "h100" is not "h200".
    if (word.size() >= 3 && candidate.starts_with(word)) {
      return candidate;
    }
  }
  for (const std::string& candidate : known) {
    // The distance is at least the difference in length; this saves comparing a huge word.
    if (std::max(word.size(), candidate.size()) - std::min(word.size(), candidate.size()) >=
        best_distance) {
      continue;
    }
    const std::size_t distance = edit_distance(word, candidate);
    if (distance < best_distance) {
      best_distance = distance;
      best = candidate;
    }
  }
  if (best.empty() && word.size() >= 4) {
    // A shortened name: "hicache" is "sglang_hicache", "ttft.p90" is "ttft_seconds.p90".
    for (const std::string& candidate : known) {
      const bool shorter = best.empty() || candidate.size() < best.size();
      if (shorter && candidate.size() <= 2 * word.size() && has_letters_of(candidate, word)) {
        best = candidate;
      }
    }
  }
  return best;
}

std::string suggestion(std::string_view word, const std::vector<std::string>& known) {
  const std::string_view match = closest_match(word, known);
  return match.empty() ? std::string() : fmt::format(" (did you mean \"{}\"?)", match);
}

}  // namespace kvtier
