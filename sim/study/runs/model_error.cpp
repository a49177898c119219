#include "sim/study/runs/model_error.hpp"

#include <fmt/format.h>

#include "sim/study/runs/summary.hpp"

namespace kvtier {
namespace {

std::string describe_shares(const SourceShares& shares) {
  constexpr double kShown = 0.005;
  constexpr double kPercent = 100;
  std::vector<std::string> parts;
  for (std::size_t i = 0; i < shares.all.size(); ++i) {
    if (shares.all[i] >= kShown) {
      parts.push_back(
          fmt::format("{:.0f} % {}", kPercent * shares.all[i], words_of(kTimeSourceNames[i])));
    }
  }
  return detail::join(parts, ", ");
}

/// "0.11 to 0.15": the mean of a metric times the factors of its range.
std::string range_text(const std::vector<Json>& results, const char* pointer,
                       ErrorRange ModelError::*range, double unit, const char* format) {
  const auto error = model_error_of(results.front());
  const auto summary = summarize(results, pointer);
  if (!error || !summary) {
    return "-";
  }
  const auto number = [&](double factor) {
    return fmt::format(fmt::runtime(format), summary->mean * unit * factor);
  };
  return number(((*error).*range).low) + " to " + number(((*error).*range).high);
}

constexpr const char* kTtftMean = "/metrics/ttft_seconds/mean";
constexpr const char* kTpotMean = "/metrics/tpot_seconds/mean";
constexpr double kMillisOfSecond = 1000;

constexpr ModelErrorRow kErrorRows[] = {
    {"times from",
     [](const std::vector<Json>& results) {
       const auto error = model_error_of(results.front());
       return error ? describe_classes(*error) : std::string("-");
     }},
    {"  80 % range of TTFT mean s",
     [](const std::vector<Json>& results) {
       return range_text(results, kTtftMean, &ModelError::ttft, 1, "{:.3f}");
     }},
    {"  80 % range of TPOT mean ms",
     [](const std::vector<Json>& results) {
       return range_text(results, kTpotMean, &ModelError::tpot, kMillisOfSecond, "{:.1f}");
     }},
};

/// Whether the ranges of two values overlap by errors of their own.
bool overlap(double value, const TimeOrigin& origin, double other_value, const TimeOrigin& other) {
  const ErrorRange own = error_range_beside(origin, other);
  const ErrorRange others = error_range_beside(other, origin);
  return value != other_value && !(own == ErrorRange{} && others == ErrorRange{}) &&
         value * own.low <= other_value * others.high &&
         other_value * others.low <= value * own.high;
}

}  // namespace

std::span<const ModelErrorRow> model_error_rows() { return kErrorRows; }

std::string describe_classes(const ModelError& error) {
  const std::string prefill = words_of(class_of(error.prefill.shares));
  const std::string decode = words_of(class_of(error.decode.shares));
  return prefill == decode ? prefill : prefill + ", " + decode;
}

std::string describe_mixture(const ModelError& error) {
  const auto is_mixed = [](const TimeOrigin& origin) { return class_of(origin.shares) == "mixed"; };
  return is_mixed(error.prefill) || is_mixed(error.decode)
             ? fmt::format("prefill {}; decode {}", describe_shares(error.prefill.shares),
                           describe_shares(error.decode.shares))
             : "";
}

std::optional<ComparedTimes> compared_times(const std::string& name,
                                            const std::vector<Json>& results) {
  const auto error = model_error_of(results.front());
  if (!error) {
    return std::nullopt;
  }
  const auto mean = [&](const char* pointer) {
    const auto summary = summarize(results, pointer);
    return summary ? std::optional(summary->mean) : std::nullopt;
  };
  return ComparedTimes{.name = name,
                       .error = *error,
                       .ttft_seconds = mean(kTtftMean),
                       .tpot_seconds = mean(kTpotMean)};
}

std::vector<std::string> uncertain_orders(const ComparedTimes& one, const ComparedTimes& other) {
  std::vector<std::string> metrics;
  if (one.ttft_seconds && other.ttft_seconds &&
      overlap(*one.ttft_seconds, one.error.prefill, *other.ttft_seconds, other.error.prefill)) {
    metrics.emplace_back("TTFT");
  }
  if (one.tpot_seconds && other.tpot_seconds &&
      overlap(*one.tpot_seconds, one.error.decode, *other.tpot_seconds, other.error.decode)) {
    metrics.emplace_back("TPOT");
  }
  return metrics;
}

bool have_own_errors(const ModelError& one, const ModelError& other) {
  const auto has = [](const TimeOrigin& origin, const TimeOrigin& beside) {
    constexpr double kMinor = 1.01;
    const ErrorRange range = error_range_beside(origin, beside);
    return range.high > kMinor || range.low * kMinor < 1;
  };
  return has(one.prefill, other.prefill) || has(other.prefill, one.prefill) ||
         has(one.decode, other.decode) || has(other.decode, one.decode);
}

std::string describe_uncertain_order(const ComparedTimes& one, const ComparedTimes& other) {
  const std::vector<std::string> metrics = uncertain_orders(one, other);
  return metrics.empty()
             ? ""
             : fmt::format(
                   "The order of {} ({}) and {} ({}) by {} is not certain: the ranges of "
                   "their times overlap.",
                   one.name, describe_classes(one.error), other.name, describe_classes(other.error),
                   detail::join(metrics, " and "));
}

}  // namespace kvtier
