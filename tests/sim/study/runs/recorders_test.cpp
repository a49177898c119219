/// The files that a run writes as it goes, against its result and against each other.

#include "sim/study/runs/recorders.hpp"

#include <algorithm>
#include <cctype>
#include <fstream>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "sim/core/file.hpp"
#include "tests/sim/study/support.hpp"
#include "traces/trace_format.hpp"

namespace kvtier::test {
namespace {

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::stringstream stream(text);
  std::string part;
  while (std::getline(stream, part, separator)) {
    parts.push_back(part);
  }
  if (!text.empty() && text.back() == separator && separator == ',') {
    parts.emplace_back();
  }
  return parts;
}

using Row = std::map<std::string, std::string>;

std::vector<Row> read_csv(const std::filesystem::path& path) {
  const std::vector<std::string> lines = split(read_text_file(path), '\n');
  const std::vector<std::string> header = split(lines.at(0), ',');
  std::vector<Row> rows;
  for (std::size_t i = 1; i < lines.size(); ++i) {
    const std::vector<std::string> fields = split(lines[i], ',');
    EXPECT_EQ(fields.size(), header.size()) << lines[i];
    Row row;
    for (std::size_t column = 0; column < std::min(header.size(), fields.size()); ++column) {
      row[header[column]] = fields[column];
    }
    rows.push_back(row);
  }
  return rows;
}

/// One run under pressure and the files that it wrote.
class Recording : public testing::Test {
 protected:
  void record(const std::vector<std::string>& more = {}) {
    std::vector<std::string> settings{"/hardware/dram/capacity=16GiB",
                                      "/hardware/ssd/capacity=60GiB",
                                      "/model/context_window=2048tokens",
                                      "/workload/sessions=250",
                                      "/workload/arrival_rate=2/s",
                                      "/workload/warmup_turns=0",
                                      "/serving/slots=24"};
    settings.insert(settings.end(), more.begin(), more.end());
    Recorders recorders;
    const RunConfig config = resolved("examples/planner-70.json", settings);
    recorders.requests =
        std::make_unique<RequestRecorder>(dir_.path("requests.csv"), config.system);
    recorders.timeline = std::make_unique<TimelineRecorder>(dir_.path("timeline.json"));
    recorders.decisions = std::make_unique<DecisionRecorder>(dir_.path("decisions.jsonl"));
    recorders.occupancy = std::make_unique<OccupancyRecorder>();
    RunOptions options;
    options.on_start = [&](const Instance& instance) { recorders.occupancy->watch(instance); };
    options.observer = &recorders;
    options.decisions = recorders.decisions.get();
    result_ = simulate(config, builtin_policies(), options);
    EXPECT_FALSE(std::filesystem::exists(dir_.path("requests.csv"))) << "not yet complete";
    recorders.commit();
    occupancy_ = recorders.occupancy->to_json();
    requests_ = read_csv(dir_.path("requests.csv"));
    for (const std::string& line : split(read_text_file(dir_.path("decisions.jsonl")), '\n')) {
      decisions_.push_back(parse_json_strictly(line, "decisions.jsonl"));
    }
    timeline_ = parse_json_strictly(read_text_file(dir_.path("timeline.json")), "timeline.json");
  }

  TempDir dir_;
  Json result_;
  std::vector<Row> requests_;
  std::vector<Json> decisions_;
  Json timeline_;
  Json occupancy_;

  /// Bytes times seconds that the samples of a tier cover.
  [[nodiscard]] double covered(const std::string& tier) const {
    double sum = 0;
    double begin = 0;
    for (std::size_t i = 0; i < occupancy_["seconds"].size(); ++i) {
      const double end = occupancy_["seconds"][i].get<double>();
      EXPECT_GT(end, begin) << "in order of time";
      sum += occupancy_["bytes"][tier][i].get<double>() * (end - begin);
      begin = end;
    }
    return sum;
  }
};

// Rows are written before the stationary state is found, with which measuring begins anew.
TEST_F(Recording, MarksTheTurnsThatAreMeasured) {
  record({"/workload/arrival_rate=0.1/s", "/workload/sessions=700"});
  ASSERT_EQ(result_["load"]["measured"]["stationary"], true);
  const double from = number_at(result_, "/load/measured/from_seconds");
  const double to = number_at(result_, "/load/measured/to_seconds");
  std::int64_t measured = 0;
  for (const Row& row : requests_) {
    const double admitted = std::stod(row.at("admitted_seconds"));
    const bool is_in = admitted >= from && admitted < to;
    EXPECT_EQ(row.at("measured"), is_in ? "1" : "0") << admitted;
    measured += is_in ? 1 : 0;
  }
  EXPECT_EQ(measured, result_["metrics"]["turns"].get<std::int64_t>());
  EXPECT_LT(measured, result_["workload"]["turns"].get<std::int64_t>());
}

// Fewer turns than samples: the last sample ends with the last turn. Nothing is stored before the
// first admission, where the measured part begins, so both are the same integral.
TEST_F(Recording, SamplesOccupancyWithTheMeanOfTheResult) {
  record({"/workload/sessions=30"});
  ASSERT_LE(requests_.size(), kOccupancySamplesMost);
  for (const char* tier : {"dram", "ssd"}) {
    const double mean =
        number_at(result_, std::string("/metrics/tiers/") + tier + "/occupancy_bytes/mean");
    const double whole = mean * number_at(result_, "/load/measured_seconds");
    EXPECT_NEAR(covered(tier), whole, 1e-6 * whole) << tier;
  }
  EXPECT_GT(covered("dram"), 0);
}

TEST_F(Recording, JoinsSamplesOfManyTurns) {
  record();
  ASSERT_GT(requests_.size(), 4 * kOccupancySamplesMost);
  const std::size_t samples = occupancy_["seconds"].size();
  EXPECT_LE(samples, kOccupancySamplesMost);
  EXPECT_GE(samples, kOccupancySamplesMost / 4);
  EXPECT_EQ(occupancy_["bytes"].size(), 2U);
  for (const char* tier : {"dram", "ssd"}) {
    const double most =
        number_at(result_, std::string("/metrics/tiers/") + tier + "/occupancy_bytes/max");
    ASSERT_EQ(occupancy_["bytes"][tier].size(), samples);
    for (const Json& mean : occupancy_["bytes"][tier]) {
      EXPECT_LE(mean.get<double>(), most * (1 + 1e-12));
    }
  }
  EXPECT_GT(covered("ssd"), 0);
}

TEST_F(Recording, HasARequestForEachTurn) {
  record({"/workload/warmup_turns=300"});
  const Json& metrics = result_["metrics"];
  EXPECT_EQ(requests_.size(), result_["workload"]["turns"].get<std::size_t>());
  std::map<std::string, int> turns_of_session;
  std::int64_t measured = 0;
  std::int64_t hits = 0;
  std::int64_t prompt_tokens = 0;
  std::int64_t output_tokens = 0;
  std::map<std::string, std::int64_t> lost;
  double last_finished = 0;
  for (const Row& row : requests_) {
    const auto number = [&](const char* key) { return std::stod(row.at(key)); };
    EXPECT_EQ(turns_of_session[row.at("session")]++, std::stoi(row.at("turn")));
    EXPECT_LE(number("arrived_seconds"), number("admitted_seconds"));
    EXPECT_LT(number("admitted_seconds"), number("first_token_seconds"));
    EXPECT_LE(number("first_token_seconds"), number("finished_seconds"));
    EXPECT_LE(last_finished, number("finished_seconds")) << "in order of finishing";
    last_finished = number("finished_seconds");
    const std::int64_t history = std::stoll(row.at("history_tokens"));
    const std::int64_t reused = std::stoll(row.at("reused_tokens"));
    EXPECT_LE(reused, history);
    EXPECT_EQ(row.at("found_in").empty(), reused == 0);
    const bool cut_whole = history == 0 && row.at("truncated_tokens") != "0";
    EXPECT_EQ(row.at("lost_because").empty(), reused == history && !cut_whole);
    if (row.at("measured") == "1") {
      ++measured;
      hits += history > 0 && reused == history ? 1 : 0;
      prompt_tokens += history + std::stoll(row.at("input_tokens"));
      output_tokens += std::stoll(row.at("output_tokens"));
      if (!row.at("lost_because").empty()) {
        ++lost[row.at("lost_because")];
      }
    }
  }
  EXPECT_EQ(turns_of_session.size(), result_["workload"]["sessions"].get<std::size_t>());
  EXPECT_EQ(measured, metrics["turns"].get<std::int64_t>());
  EXPECT_DOUBLE_EQ(static_cast<double>(hits) / static_cast<double>(measured),
                   number_at(metrics, "/hit_rate/all_turns/total"));
  EXPECT_EQ(prompt_tokens, metrics["prompt_tokens"].get<std::int64_t>());
  EXPECT_EQ(output_tokens, metrics["output_tokens"].get<std::int64_t>());
  for (const auto& [cause, count] : metrics["lost_hits"].items()) {
    EXPECT_EQ(lost[cause], count.get<std::int64_t>()) << cause;
  }
  EXPECT_GT(lost["overflow"], 0) << "some turn's whole history is cut away";
}

TEST_F(Recording, SaysOfEachDecisionWhenItsEntryIsNextUsed) {
  record();
  std::map<std::int64_t, std::vector<double>> admissions;
  for (const Row& row : requests_) {
    admissions[std::stoll(row.at("session"))].push_back(std::stod(row.at("admitted_seconds")));
  }
  double last_finish = 0;
  for (const auto& row : requests_) {
    last_finish = std::max(last_finish, std::stod(row.at("finished_seconds")));
  }
  std::map<std::string, int> kinds;
  int measured_inserts = 0;
  std::vector<bool> numbers(decisions_.size());
  std::int64_t used = 0;
  for (const Json& decision : decisions_) {
    ++kinds[decision["decision"].get<std::string>()];
    const auto number = decision["number"].get<std::size_t>();
    ASSERT_LT(number, numbers.size());
    ASSERT_FALSE(numbers[number]) << "numbers are unique";
    numbers[number] = true;
    const double time = decision["time_seconds"].get<double>();
    // Moves may go on after the last turn; the result's counters end with it.
    measured_inserts += decision["decision"] == "insert" && time <= last_finish ? 1 : 0;
    const std::vector<double>& uses = admissions.at(decision["session"].get<std::int64_t>());
    // A use at the very instant of the decision may come just before or just after it.
    const auto from = std::lower_bound(uses.begin(), uses.end(), time);
    const auto after = std::upper_bound(uses.begin(), uses.end(), time);
    if (decision["next_use_seconds"].is_null()) {
      EXPECT_TRUE(after == uses.end()) << decision.dump();
    } else {
      ++used;
      const double next = decision["next_use_seconds"].get<double>();
      EXPECT_TRUE((from != uses.end() && next == *from) || (after != uses.end() && next == *after))
          << decision.dump();
    }
    const bool makes_room = decision["decision"] == "evict" || decision["decision"] == "demote";
    EXPECT_EQ(decision["reason"].is_string(), makes_room) << decision.dump();
    EXPECT_TRUE(decision["tier"] == "dram" || decision["tier"] == "ssd") << decision.dump();
  }
  EXPECT_GT(used, 100);
  for (const char* kind : {"insert", "evict", "demote", "prefetch"}) {
    EXPECT_GT(kinds[kind], 10) << kind;
  }
  EXPECT_EQ(measured_inserts, result_["metrics"]["tiers"]["dram"]["insertions"].get<int>() +
                                  result_["metrics"]["tiers"]["ssd"]["insertions"].get<int>());
}

TEST_F(Recording, ShowsTheGpusWithoutOverlapAndTheQueueEmptyAtTheEnd) {
  record();
  double end = 0;
  double waiting = -1;
  std::map<std::string, double> seconds;
  for (const Json& event : timeline_["traceEvents"]) {
    if (event["ph"] == "M" || (event["ph"] == "X" && event["tid"] != 0)) {
      continue;
    }
    if (event["ph"] == "X") {
      const double begin = event["ts"].get<double>();
      EXPECT_GE(begin, end - 1e-3) << event.dump();
      end = begin + event["dur"].get<double>();
      seconds[event["name"].get<std::string>()] += event["dur"].get<double>() * 1e-6;
    } else {
      ASSERT_EQ(event["ph"], "C");
      waiting = event["args"]["waiting"].get<double>();
      EXPECT_GE(waiting, 0);
    }
  }
  EXPECT_EQ(waiting, 0);
  const Json& gpu = result_["metrics"]["gpu_seconds"];
  const double gpus = number_at(result_, "/config/hardware/gpus");
  EXPECT_NEAR(seconds["decode"] * gpus, gpu["decode"].get<double>(), 1e-3);
  EXPECT_NEAR(seconds["prefill"] * gpus,
              gpu["prefill"].get<double>() + gpu["exposed_load"].get<double>(), 1e-3);
  EXPECT_NEAR(seconds["save_stall"] * gpus, gpu["exposed_save"].get<double>(), 1e-3);
}

/// Spans of a timeline by track; the rows of one track together, in the order of the file.
std::map<std::string, std::vector<Json>> tracks_of(const Json& timeline) {
  std::map<int, std::string> track_of_row;
  std::map<std::string, std::vector<Json>> tracks;
  for (const Json& event : timeline["traceEvents"]) {
    if (event["ph"] == "M") {
      EXPECT_EQ(event["name"], "thread_name");
      std::string name = event["args"]["name"].get<std::string>();
      if (const auto number = name.find_last_of(' ');
          number != std::string::npos && std::isdigit(name[number + 1]) != 0) {
        name.resize(number);
      }
      EXPECT_TRUE(track_of_row.emplace(event["tid"].get<int>(), name).second) << "named once";
    } else if (event["ph"] == "X") {
      tracks[track_of_row.at(event["tid"].get<int>())].push_back(event);
    }
  }
  return tracks;
}

double begin_of(const Json& span) { return span["ts"].get<double>(); }
double end_of(const Json& span) { return begin_of(span) + span["dur"].get<double>(); }

TEST_F(Recording, ShowsEachTransferOnTheTracksOfItsLinks) {
  record();
  const auto tracks = tracks_of(timeline_);
  std::map<std::string, std::int64_t> bytes;
  for (const auto& [name, spans] : tracks) {
    for (const Json& span : spans) {
      bytes[name] += span["args"].value("bytes", std::int64_t{0});
      EXPECT_GE(span["dur"].get<double>(), 0) << span.dump();
    }
  }
  ASSERT_EQ(tracks.size(), 5U);
  // Nothing is loaded after the last turn; the other moves may go on.
  const Json& links = result_["metrics"]["links"];
  EXPECT_EQ(bytes["H2D"], links["pcie"]["towards_gpu_bytes"].get<std::int64_t>());
  EXPECT_GE(bytes["D2H"], links["pcie"]["from_gpu_bytes"].get<std::int64_t>());
  EXPECT_GE(bytes["SSD read"], links["ssd"]["towards_gpu_bytes"].get<std::int64_t>());
  EXPECT_GE(bytes["SSD write"], links["ssd"]["from_gpu_bytes"].get<std::int64_t>());
  EXPECT_GT(bytes["SSD read"], 0);
  // Spans of one row follow each other.
  std::map<int, double> ends;
  for (const Json& event : timeline_["traceEvents"]) {
    if (event["ph"] == "X") {
      double& end = ends.emplace(event["tid"].get<int>(), 0).first->second;
      EXPECT_GE(begin_of(event), end - 1e-3) << event.dump();
      end = end_of(event);
    }
  }
  EXPECT_GT(ends.size(), 5U) << "concurrent transfers take rows of their own";
}

/// AttentionStore's figures 6 and 8 with one slot: session 0 comes back while session 1 runs.
class SmallTimeline : public Recording {
 protected:
  /// The second turn of session 0 arrives `think` after its first.
  void run(SimDuration think) {
    {
      TraceWriter writer(dir_.path("jobs.jsonl"), {.arrivals = true, .think_times = true});
      writer.write(
          {.id = 0,
           .arrival = SimTime(0),
           .turns = {{Tokens(2000), Tokens(20), SimDuration(0)}, {Tokens(50), Tokens(10), think}}});
      writer.write({.id = 1,
                    .arrival = SimTime(50000000),
                    .turns = {{Tokens(1500), Tokens(100), SimDuration(0)}}});
      writer.commit();
    }
    Recorders recorders;
    recorders.timeline = std::make_unique<TimelineRecorder>(dir_.path("timeline.json"));
    RunOptions options;
    options.observer = &recorders;
    options.base_dir = dir_.path("");
    (void)simulate(
        resolved("examples/planner-70.json",
                 {"/serving/slots=1", "/workload/generator=none", "/workload/trace=jobs.jsonl",
                  "/workload/sessions=all", "/workload/arrivals=trace",
                  "/workload/arrival_rate=none", "/workload/think_time/model=trace",
                  "/workload/warmup_turns=0", "/system/load/buffers=15"}),
        builtin_policies(), options);
    recorders.commit();
    auto tracks =
        tracks_of(parse_json_strictly(read_text_file(dir_.path("timeline.json")), "timeline.json"));
    gpu_ = tracks["GPU"];
    for (const Json& span : tracks["H2D"]) {
      EXPECT_EQ(span["args"]["session"], 0);
    }
    loads_ = tracks["H2D"];
    saves_ = tracks["D2H"];
    ASSERT_EQ(gpu_.size(), 6U);  // prefill and decode of three turns
    ASSERT_EQ(loads_.size(), 2U);
    EXPECT_EQ(gpu_[kPrefillOf1]["args"]["session"], 1);
    EXPECT_EQ(gpu_[kSecondPrefillOf0]["args"]["session"], 0);
  }

  static constexpr std::size_t kPrefillOf0 = 0;
  static constexpr std::size_t kDecodeOf0 = 1;
  static constexpr std::size_t kPrefillOf1 = 2;
  static constexpr std::size_t kDecodeOf1 = 3;
  static constexpr std::size_t kSecondPrefillOf0 = 4;

  [[nodiscard]] static bool within(const Json& inner, const Json& outer) {
    return begin_of(inner) >= begin_of(outer) && end_of(inner) <= end_of(outer);
  }

  std::vector<Json> gpu_;
  std::vector<Json> loads_;
  std::vector<Json> saves_;
};

TEST_F(SmallTimeline, PreLoadsDuringTheDecodeOfTheRequestBefore) {
  run(SimDuration(300000000));
  EXPECT_TRUE(within(loads_[0], gpu_[kDecodeOf1])) << loads_[0].dump();
}

TEST_F(SmallTimeline, PreLoadsDuringThePrefillOfTheRequestBefore) {
  run(SimDuration(20000000));
  EXPECT_TRUE(within(loads_[0], gpu_[kPrefillOf1])) << loads_[0].dump();
}

TEST_F(SmallTimeline, LoadsTheOtherLayersDuringTheRequestsOwnPrefill) {
  run(SimDuration(300000000));
  EXPECT_TRUE(within(loads_[1], gpu_[kSecondPrefillOf0]));
  EXPECT_EQ(begin_of(loads_[1]), begin_of(gpu_[kSecondPrefillOf0]));
  // 15 of 40 layers were loaded ahead.
  EXPECT_EQ(loads_[0]["args"]["bytes"].get<std::int64_t>() * 25,
            loads_[1]["args"]["bytes"].get<std::int64_t>() * 15);
}

TEST_F(SmallTimeline, SavesThePromptDuringDecode) {
  run(SimDuration(300000000));
  ASSERT_GE(saves_.size(), 2U);
  EXPECT_EQ(saves_[0]["args"]["session"], 0);
  EXPECT_EQ(begin_of(saves_[0]), end_of(gpu_[kPrefillOf0]));
  EXPECT_TRUE(within(saves_[0], gpu_[kDecodeOf0]));
  // The KV of decode follows when the turn has ended, while the next request's prefill runs.
  EXPECT_EQ(saves_[1]["args"]["session"], 0);
  EXPECT_TRUE(within(saves_[1], gpu_[kPrefillOf1]));
}

using Turn = std::pair<std::int64_t, std::int64_t>;

/// Adds up the iterations of a run.
class IterationSums final : public RunObserver {
 public:
  [[nodiscard]] bool wants_iterations() const override { return true; }
  void on_iteration(const Iteration& iteration) override {
    SimTime& end = ends[iteration.instance];
    EXPECT_GE(iteration.begin, end) << "one after the other";
    EXPECT_GT(iteration.end, iteration.begin);
    end = iteration.end;
    EXPECT_FALSE(iteration.parts.empty());
    for (const IterationPart& part : iteration.parts) {
      (part.prompt.value > 0 ? prompts : responses)[{part.session, part.turn}] +=
          std::max<std::int64_t>(1, part.prompt.value);
    }
    for (const IterationPart& part : iteration.preempted) {
      ++preempted[{part.session, part.turn}];
    }
  }
  void on_request(const RequestRecord& record) override { requests.push_back(record); }

  std::map<std::uint32_t, SimTime> ends;
  std::map<Turn, std::int64_t> prompts;
  std::map<Turn, std::int64_t> responses;
  std::map<Turn, std::int64_t> preempted;
  std::vector<RequestRecord> requests;
};

TEST(Iterations, HaveEachTokenThatIsComputedInEachSystem) {
  std::int64_t preemptions = 0;
  for (const std::string& system : presets().names("systems")) {
    for (const std::size_t instances : {1U, 2U}) {
      SCOPED_TRACE(fmt::format("{}, {} instances", system, instances));
      const RunConfig config = resolved(
          "examples/planner-70.json",
          {R"(/hardware/cxl={"capacity": "16GiB", "price": "0$/h/GiB", "bandwidth": {"read": "10GB/s", "write": "10GB/s", "both": "10GB/s"}})",
           "/system=" + system, "/workload/sessions=24", "/workload/arrival_rate=4/s",
           "/workload/think_time/mean=1s", "/workload/measure=all", "/hardware/dram/capacity=24GiB",
           (system.starts_with("hbm_") ? "/hardware/hbm/capacity=40GiB"
                                       : "/hardware/hbm/capacity=20GiB"),
           fmt::format("/cluster/instances={}", instances)});
      IterationSums sums;
      const Json result = simulate(config, builtin_policies(), {.observer = &sums});
      EXPECT_EQ(sums.ends.size(), instances);
      const bool of_blocks = config.system.blocks.has_value();
      std::int64_t preempted = 0;
      for (const RequestRecord& r : sums.requests) {
        const Turn turn(r.session, r.turn);
        EXPECT_EQ(sums.preempted[turn], r.preemptions);
        EXPECT_LT(r.instance, instances);
        preempted += r.preemptions;
        if (r.preemptions > 0) {
          continue;  // it computes some of its tokens again
        }
        std::int64_t found = 0;
        for (const Tokens tokens : of_blocks ? r.prompt_found : r.found.by_medium()) {
          found += tokens.value;
        }
        EXPECT_EQ(sums.prompts[turn], std::max<std::int64_t>(1, r.prompt().value - found));
        EXPECT_EQ(sums.responses[turn], r.output.value - 1) << "its prompt gave the first token";
      }
      EXPECT_EQ(preempted, result["metrics"]["preemptions"].get<std::int64_t>());
      preemptions += preempted;
    }
  }
  EXPECT_GT(preemptions, 0);
}

TEST(IterationRecorder, WritesALineForEachIteration) {
  const TempDir dir;
  IterationRecorder recorder(dir.path("iterations.jsonl"));
  recorder.add(
      {.instance = 1,
       .begin = SimTime(500'000'000),
       .end = SimTime(750'000'000),
       .parts = {{.session = 3, .turn = 0, .prompt = Tokens(512)}, {.session = 4, .turn = 2}},
       .preempted = {{.session = 5, .turn = 1}}});
  recorder.commit();
  EXPECT_EQ(read_text_file(dir.path("iterations.jsonl")),
            "{\"instance\":1,\"begin_seconds\":0.5,\"duration_seconds\":0.25,\"requests\":["
            "{\"session\":3,\"turn\":0,\"prompt_tokens\":512},"
            "{\"session\":4,\"turn\":2,\"response_tokens\":1}],"
            "\"preempted\":[{\"session\":5,\"turn\":1}]}\n");
}

TEST_F(Recording, LeavesNothingBehindWithoutCommit) {
  {
    RequestRecorder requests(dir_.path("requests.csv"), SystemConfig{});
    TimelineRecorder timeline(dir_.path("timeline.json"));
    DecisionRecorder decisions(dir_.path("decisions.jsonl"));
    requests.add(RequestRecord{});
    timeline.add_queue(3, SimTime(5));
  }
  EXPECT_TRUE(std::filesystem::is_empty(dir_.path("")));
}

TEST_F(Recording, WritesAValidTimelineWithoutEvents) {
  TimelineRecorder timeline(dir_.path("timeline.json"));
  timeline.commit();
  const Json json = parse_json_strictly(read_text_file(dir_.path("timeline.json")), "timeline");
  EXPECT_TRUE(json["traceEvents"].is_array());
  EXPECT_TRUE(json["traceEvents"].empty());
}

TEST_F(Recording, GivesEachRunOfATimelineItsOwnTracks) {
  TimelineRecorder timeline(dir_.path("timeline.json"));
  for (const char* run : {"simulated", "measured"}) {
    timeline.begin_run(run);
    timeline.add_queue(1, SimTime(0));
    timeline.add_gpu(GpuActivity::prefill, SimTime(0), SimTime(5), 7, 1);
  }
  timeline.commit();
  const Json json = parse_json_strictly(read_text_file(dir_.path("timeline.json")), "timeline");
  std::map<int, std::vector<std::string>> names;
  for (const Json& event : json["traceEvents"]) {
    const Json& name = event["ph"] == "M" ? event["args"]["name"] : event["name"];
    names[event["pid"].get<int>()].push_back(name.get<std::string>());
  }
  EXPECT_EQ(names, (std::map<int, std::vector<std::string>>{
                       {1, {"simulated", "queue", "GPU", "prefill"}},
                       {2, {"measured", "queue", "GPU", "prefill"}}}));
}

/// By hand: session 7 is decided on twice and used in between, then ends; session 8 is never used.
TEST_F(Recording, WritesADecisionOnceItsNextUseIsKnown) {
  DecisionRecorder recorder(dir_.path("decisions.jsonl"));
  const auto decide = [&](DecisionKind kind, std::uint64_t session, std::int64_t ns) {
    Decision decision{};
    decision.kind = kind;
    decision.tier = Medium::dram;
    decision.key = {session};
    decision.tokens = Tokens(10);
    decision.time = SimTime(ns);
    decision.demand = Demand::prefetch;
    recorder.on_decision(decision);
  };
  recorder.on_use({7}, SimTime(0));
  recorder.on_use({8}, SimTime(0));
  decide(DecisionKind::insert, 7, 1000000000);
  decide(DecisionKind::evict, 8, 2000000000);
  recorder.on_use({7}, SimTime(3000000000));
  decide(DecisionKind::demote, 7, 4000000000);
  recorder.end_session({7});
  decide(DecisionKind::insert, 7, 5000000000);  // a late save: nobody comes back for it
  recorder.commit();
  EXPECT_EQ(
      read_text_file(dir_.path("decisions.jsonl")),
      R"({"number":0,"time_seconds":1,"decision":"insert","tier":"dram","session":7,"tokens":10,)"
      R"("reason":null,"queue_position":null,"next_use_seconds":3})"
      "\n"
      R"({"number":2,"time_seconds":4,"decision":"demote","tier":"dram","session":7,"tokens":10,)"
      R"("reason":"room for prefetch","queue_position":null,"next_use_seconds":null})"
      "\n"
      R"({"number":3,"time_seconds":5,"decision":"insert","tier":"dram","session":7,"tokens":10,)"
      R"("reason":null,"queue_position":null,"next_use_seconds":null})"
      "\n"
      R"({"number":1,"time_seconds":2,"decision":"evict","tier":"dram","session":8,"tokens":10,)"
      R"("reason":"room for prefetch","queue_position":null,"next_use_seconds":null})"
      "\n");
}

}  // namespace
}  // namespace kvtier::test
