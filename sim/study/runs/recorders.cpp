#include "sim/study/runs/recorders.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "sim/policy/demand_name.hpp"
#include "sim/serving/store_rules.hpp"

namespace kvtier {
namespace {

/// Row numbers of a track begin at its index times this, so that a track's rows stay together.
constexpr std::size_t kRowsPerTrack = 100000;

/// The session or the shared prompt of an entry, as a member of a JSON object.
std::string whose(EntryKey key) {
  return (key.value & kPromptKey) != 0
             ? fmt::format("\"shared_prompt\":{}", key.value & ~kPromptKey)
             : fmt::format("\"session\":{}", key.value);
}

double microseconds(SimTime time) { return static_cast<double>(time.ns) * 1e-3; }

}  // namespace

RequestRecorder::RequestRecorder(const std::string& path, const SystemConfig& system)
    : file_(path) {
  std::string header =
      "session,turn,measured,arrived_seconds,admitted_seconds,first_token_seconds,finished_seconds,"
      "prompt_tokens,history_tokens,input_tokens,output_tokens,truncated_tokens,reused_tokens,"
      "found_in,late,lost_because,exposed_load_seconds,preemptions,instance";
  for_each_tier(system.tiers, [&](const char* name, const TierConfig&) {
    header += fmt::format(",found_{}_tokens", name);
    tiers_.push_back(medium_of(name));
  });
  file_.write(header + "\n");
}

void RequestRecorder::add(const RequestRecord& r) {
  const bool found = r.found.reused.value > 0;
  const LossCause loss = r.lost_because();
  std::string row = fmt::format(
      "{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{}", r.session, r.turn,
      r.measured ? 1 : 0, r.arrived.seconds(), r.admitted.seconds(), r.first_token.seconds(),
      r.finished.seconds(), r.prompt().value, r.history.value, r.input.value, r.output.value,
      r.truncated.value, r.found.reused.value, found ? kvtier::to_string(r.found.medium) : "",
      r.found.late ? 1 : 0, loss == LossCause::none ? "" : kvtier::to_string(loss),
      r.exposed_load.seconds(), r.preemptions, r.instance);
  const std::array<Tokens, kMedia> by_medium = r.found_by_medium();
  for (const Medium tier : tiers_) {
    row += fmt::format(",{}", by_medium[static_cast<std::size_t>(tier)].value);
  }
  file_.write(row + "\n");
}

void RequestRecorder::restart_measurement() {
  file_.change_lines([](std::string& row) {
    const std::size_t flag = row.find(',', row.find(',') + 1) + 1;
    if (row[flag] == '1') {
      row[flag] = '0';
    }
  });
}

void IterationRecorder::add(const Iteration& iteration) {
  const auto named = [](const IterationPart& part) {
    return fmt::format("\"session\":{},\"turn\":{}", part.session, part.turn);
  };
  std::string requests;
  for (const IterationPart& part : iteration.parts) {
    requests += fmt::format("{}{{{},\"{}\":{}}}", requests.empty() ? "" : ",", named(part),
                            part.prompt.value > 0 ? "prompt_tokens" : "response_tokens",
                            std::max<std::int64_t>(1, part.prompt.value));
  }
  std::string preempted;
  for (const IterationPart& part : iteration.preempted) {
    preempted += fmt::format("{}{{{}}}", preempted.empty() ? "" : ",", named(part));
  }
  file_.write(fmt::format(
      "{{\"instance\":{},\"begin_seconds\":{},\"duration_seconds\":{},\"requests\":[{}],"
      "\"preempted\":[{}]}}\n",
      iteration.instance, iteration.begin.seconds(), (iteration.end - iteration.begin).seconds(),
      requests, preempted));
}

TimelineRecorder::TimelineRecorder(const std::string& path) : file_(path) {
  file_.write("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n");
}

void TimelineRecorder::begin_run(const std::string& name) {
  ++process_;
  rows_ = {};
  write(
      fmt::format("{{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":{},\"args\":{{\"name\":{}}}}}",
                  process_, json_text(Json(name))));
}

void TimelineRecorder::write(const std::string& event) {
  file_.write(fmt::format("{}{}", first_ ? "" : ",\n", event));
  first_ = false;
}

std::size_t TimelineRecorder::row(Track track, SimTime begin, SimTime end) {
  constexpr std::array<const char*, kTracks> names{"GPU",       "H2D",      "D2H",      "SSD read",
                                                   "SSD write", "CXL read", "CXL write"};
  std::vector<SimTime>& ends = rows_[track];
  std::size_t index = 0;
  while (index < ends.size() && ends[index] > begin) {
    ++index;
  }
  const std::size_t number = track * kRowsPerTrack + index;
  if (index == ends.size()) {
    ends.push_back(end);
    const std::string suffix = index == 0 ? "" : fmt::format(" {}", index + 1);
    write(
        fmt::format("{{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":{},\"tid\":{},\"args\":{{"
                    "\"name\":\"{}{}\"}}}}",
                    process_, number, names[track], suffix));
  } else {
    ends[index] = end;
  }
  return number;
}

void TimelineRecorder::add_span(Track track, const char* name, SimTime begin, SimTime end,
                                const std::string& arguments) {
  const std::size_t number = row(track, begin, end);
  write(
      fmt::format("{{\"name\":\"{}\",\"ph\":\"X\",\"pid\":{},\"tid\":{},\"ts\":{},\"dur\":{},"
                  "\"args\":{{{}}}}}",
                  name, process_, number, microseconds(begin),
                  static_cast<double>((end - begin).ns) * 1e-3, arguments));
}

void TimelineRecorder::add_gpu(GpuActivity activity, SimTime begin, SimTime end,
                               std::int64_t session, std::int64_t batch) {
  add_span(gpu, kvtier::to_string(activity), begin, end,
           fmt::format("\"session\":{},\"batch\":{}", session, batch));
}

void TimelineRecorder::add_transfer(const TransferRecord& t) {
  const std::string name =
      fmt::format("{} to {}", kvtier::to_string(t.from), kvtier::to_string(t.to));
  const std::string arguments = fmt::format("{},\"bytes\":{}", whose(t.key), t.bytes.value);
  const auto add = [&](bool uses, Track track) {
    if (uses) {
      add_span(track, name.c_str(), t.begin, t.end, arguments);
    }
  };
  add(t.to == Medium::hbm && t.from != Medium::cxl, host_to_device);
  add(t.from == Medium::hbm && t.to != Medium::cxl, device_to_host);
  add(t.from == Medium::ssd, ssd_read);
  add(t.to == Medium::ssd, ssd_write);
  add(t.from == Medium::cxl, cxl_read);
  add(t.to == Medium::cxl, cxl_write);
}

void TimelineRecorder::add_queue(std::size_t length, SimTime now) {
  write(fmt::format(
      "{{\"name\":\"queue\",\"ph\":\"C\",\"pid\":{},\"ts\":{},\"args\":{{\"waiting\":{}}}}}",
      process_, microseconds(now), length));
}

void TimelineRecorder::commit() {
  file_.write("\n]}\n");
  file_.commit();
}

DecisionRecorder::DecisionRecorder(const std::string& path) : file_(path) {}

void DecisionRecorder::on_decision(const Decision& decision) {
  const Pending pending{decision, next_number_++};
  const auto live = pending_.find(decision.key.value);
  if (live == pending_.end()) {
    write(pending, nullptr);  // its session has ended
  } else {
    live->second.push_back(pending);
  }
}

void DecisionRecorder::on_block_decision(const BlockDecision& d) {
  file_.write(
      fmt::format("{{\"number\":{},\"time_seconds\":{},\"decision\":\"{}\",\"tier\":\"{}\","
                  "\"stream\":{},\"first_token\":{},\"tokens\":{},\"blocks\":{}}}\n",
                  next_number_++, d.time.seconds(), kvtier::to_string(d.kind),
                  kvtier::to_string(d.tier), d.stream, d.begin.value, d.tokens.value, d.blocks));
}

void DecisionRecorder::on_use(EntryKey key, SimTime now) {
  std::vector<Pending>& list = pending_[key.value];
  for (const Pending& pending : list) {
    write(pending, &now);
  }
  list.clear();
}

void DecisionRecorder::end_session(EntryKey key) {
  const auto found = pending_.find(key.value);
  if (found == pending_.end()) {
    return;
  }
  for (const Pending& pending : found->second) {
    write(pending, nullptr);
  }
  pending_.erase(found);
}

void DecisionRecorder::write(const Pending& pending, const SimTime* next_use) {
  const Decision& d = pending.decision;
  const bool makes_room = d.kind == DecisionKind::evict || d.kind == DecisionKind::demote;
  file_.write(
      fmt::format("{{\"number\":{},\"time_seconds\":{},\"decision\":\"{}\",\"tier\":\"{}\","
                  "{},\"tokens\":{},"
                  "\"reason\":{},\"queue_position\":{},\"next_use_seconds\":{}}}\n",
                  pending.number, d.time.seconds(), kvtier::to_string(d.kind),
                  kvtier::to_string(d.tier), whose(d.key), d.tokens.value,
                  makes_room ? fmt::format("\"room for {}\"", to_string(d.demand)) : "null",
                  d.position == kNotQueued ? "null" : std::to_string(d.position.value),
                  next_use == nullptr ? "null" : fmt::format("{}", next_use->seconds())));
}

void DecisionRecorder::commit() {
  std::vector<Pending> rest;
  for (const auto& [key, list] : pending_) {
    rest.insert(rest.end(), list.begin(), list.end());
  }
  std::sort(rest.begin(), rest.end(),
            [](const Pending& a, const Pending& b) { return a.number < b.number; });
  for (const Pending& pending : rest) {
    write(pending, nullptr);
  }
  file_.commit();
}

void OccupancyRecorder::watch(const Instance& instance) {
  instance_ = &instance;
  for (std::size_t i = 0; i < instance.batcher().tier_count(); ++i) {
    tiers_.push_back(instance.batcher().medium(i));
  }
}

void OccupancyRecorder::add(SimTime now) {
  const SimTime last = samples_.empty() ? SimTime() : samples_.back().end;
  if (now <= last || now - last < apart_) {
    return;
  }
  Sample sample{now, {}};
  for (std::size_t i = 0; i < tiers_.size(); ++i) {
    sample.byte_ns.push_back(instance_->batcher().counters(i).occupancy_byte_ns);
  }
  samples_.push_back(std::move(sample));
  if (samples_.size() > kOccupancySamplesMost) {
    // Samples are integrals from the start, so the kept ones cover the time of the dropped ones.
    std::size_t kept = 0;
    for (std::size_t i = 1; i < samples_.size(); i += 2) {
      samples_[kept++] = std::move(samples_[i]);
    }
    samples_.resize(kept);
    apart_ = SimDuration(samples_.back().end.ns / static_cast<std::int64_t>(kept));
  }
}

Json OccupancyRecorder::to_json() const {
  Json json{{"seconds", Json::array()}, {"bytes", Json::object()}};
  for (std::size_t tier = 0; tier < tiers_.size(); ++tier) {
    Json& means = json["bytes"][to_string(tiers_[tier])] = Json::array();
    SimTime begin;
    Int128 before = 0;
    for (const Sample& sample : samples_) {
      means.push_back(static_cast<double>(sample.byte_ns[tier] - before) /
                      static_cast<double>((sample.end - begin).ns));
      begin = sample.end;
      before = sample.byte_ns[tier];
    }
  }
  for (const Sample& sample : samples_) {
    json["seconds"].push_back(sample.end.seconds());
  }
  return json;
}

void Recorders::on_request(const RequestRecord& record) {
  if (requests) {
    requests->add(record);
  }
  if (occupancy) {
    occupancy->add(record.finished);
  }
}

void Recorders::on_measurement_restart() {
  if (requests) {
    requests->restart_measurement();
  }
}

void Recorders::on_gpu(GpuActivity activity, SimTime begin, SimTime end, std::int64_t session,
                       std::int64_t batch) {
  if (timeline) {
    timeline->add_gpu(activity, begin, end, session, batch);
  }
}

void Recorders::on_queue(std::size_t length, SimTime now) {
  if (timeline) {
    timeline->add_queue(length, now);
  }
}

void Recorders::on_transfer(const TransferRecord& transfer) {
  if (timeline) {
    timeline->add_transfer(transfer);
  }
}

void Recorders::on_session_end(EntryKey key, SimTime) {
  if (decisions) {
    decisions->end_session(key);
  }
}

void Recorders::commit() {
  if (requests) {
    requests->commit();
  }
  if (iterations) {
    iterations->commit();
  }
  if (timeline) {
    timeline->commit();
  }
  if (decisions) {
    decisions->commit();
  }
}

}  // namespace kvtier
