#include "sim/serving/instance_series.hpp"

#include <algorithm>

namespace kvtier {

std::size_t InstanceSeries::interval_at(SimTime now) {
  while (now.ns >= width_ns_ * static_cast<std::int64_t>(kIntervals)) {
    for (std::size_t i = 0; i < kIntervals / 2; ++i) {
      const Interval& a = intervals_[2 * i];
      const Interval& b = intervals_[2 * i + 1];
      intervals_[i] = {.request_ns = a.request_ns + b.request_ns,
                       .prompt = a.prompt + b.prompt,
                       .found = a.found + b.found};
    }
    std::fill(intervals_.begin() + kIntervals / 2, intervals_.end(), Interval{});
    width_ns_ *= 2;
  }
  return static_cast<std::size_t>(now.ns / width_ns_);
}

void InstanceSeries::advance(SimTime now) {
  const std::size_t last = interval_at(now);
  while (since_ < now) {
    const auto at = static_cast<std::size_t>(since_.ns / width_ns_);
    const SimTime end = at == last ? now : SimTime(static_cast<std::int64_t>(at + 1) * width_ns_);
    intervals_[at].request_ns += static_cast<double>(requests_ * (end - since_).ns);
    since_ = end;
  }
}

void InstanceSeries::set_requests(std::int64_t requests, SimTime now) {
  advance(now);
  requests_ = requests;
}

void InstanceSeries::add(Tokens prompt, Tokens found, SimTime now) {
  Interval& interval = intervals_[interval_at(now)];
  interval.prompt += prompt.value;
  interval.found += found.value;
}

Json InstanceSeries::report(SimTime end) {
  advance(end);
  Json requests = Json::array();
  Json hit_rate = Json::array();
  for (std::size_t i = 0; i < kIntervals && static_cast<std::int64_t>(i) * width_ns_ < end.ns;
       ++i) {
    const Interval& interval = intervals_[i];
    const std::int64_t from = static_cast<std::int64_t>(i) * width_ns_;
    const std::int64_t width = std::min(width_ns_, end.ns - from);
    requests.push_back(interval.request_ns / static_cast<double>(width));
    hit_rate.push_back(interval.prompt > 0 ? Json(static_cast<double>(interval.found) /
                                                  static_cast<double>(interval.prompt))
                                           : Json());
  }
  return Json{{"interval_seconds", static_cast<double>(width_ns_) * 1e-9},
              {"requests", std::move(requests)},
              {"hit_rate", std::move(hit_rate)}};
}

}  // namespace kvtier
