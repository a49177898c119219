/// The files that a run writes as it goes, against its result and against each other.

#include "sim/study/recorders.hpp"

#include <fstream>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "sim/core/file.hpp"
#include "tests/sim/study/support.hpp"

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
    std::vector<std::string> settings{
        "/hardware/dram/capacity=16GiB",    "/hardware/ssd/capacity=60GiB",
        "/model/context_window=2048tokens", "/workload/sessions=250",
        "/workload/arrival_rate=2/s",       "/workload/warmup_turns=0"};
    settings.insert(settings.end(), more.begin(), more.end());
    Recorders recorders;
    recorders.requests = std::make_unique<RequestRecorder>(dir_.path("requests.csv"));
    recorders.timeline = std::make_unique<TimelineRecorder>(dir_.path("timeline.json"));
    recorders.decisions = std::make_unique<DecisionRecorder>(dir_.path("decisions.jsonl"));
    RunOptions options;
    options.observer = &recorders;
    options.decisions = recorders.decisions.get();
    result_ = simulate(resolved("examples/planner-70.json", settings), builtin_policies(), options);
    EXPECT_FALSE(std::filesystem::exists(dir_.path("requests.csv"))) << "not yet complete";
    recorders.commit();
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
};

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
    EXPECT_EQ(row.at("lost_because").empty(), reused == history);
    if (row.at("measured") == "1") {
      ++measured;
      hits += history > 0 && reused == history ? 1 : 0;
      prompt_tokens += history + std::stoll(row.at("input_tokens"));
      output_tokens += std::stoll(row.at("output_tokens"));
      if (history > 0 && reused < history) {
        ++lost[row.at("lost_because")];
      } else if (history == 0 && row.at("truncated_tokens") != "0") {
        ++lost["overflow"];  // all of the history was cut away
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

TEST_F(Recording, LeavesNothingBehindWithoutCommit) {
  {
    RequestRecorder requests(dir_.path("requests.csv"));
    TimelineRecorder timeline(dir_.path("timeline.json"));
    DecisionRecorder decisions(dir_.path("decisions.jsonl"));
    requests.add(RequestRecord{});
    timeline.add_queue(3, SimTime(5));
  }
  EXPECT_TRUE(std::filesystem::is_empty(dir_.path("")));
}

TEST_F(Recording, OfATimelineWithoutEventsIsValid) {
  TimelineRecorder timeline(dir_.path("timeline.json"));
  timeline.commit();
  const Json json = parse_json_strictly(read_text_file(dir_.path("timeline.json")), "timeline");
  EXPECT_TRUE(json["traceEvents"].is_array());
  EXPECT_TRUE(json["traceEvents"].empty());
}

/// By hand: session 7 is decided on twice and used in between, then ends; session 8 is never used.
TEST_F(Recording, OfDecisionsWritesEachWhenItsNextUseIsKnown) {
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
