/// Each planted fault, and the check that notices it: without them nobody knows that the emulation
/// would notice anything.

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <set>

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "sim/core/errors.hpp"
#include "tests/cuda_emulation/module.hpp"
#include "tests/hw/device/decoder_reference.hpp"
#include "tests/hw/device/device_checks.hpp"

namespace kvtier::emulation {
namespace {

/// A run that returns the fault that it finds itself, or "".
using Scenario = std::function<std::string(Device& device, const Module& module)>;

AttentionCase ragged(double rope_base) {
  return {.name = "ragged",
          .shape = {.query_heads = 4, .kv_heads = 2, .head_dim = 64},
          .requests = {{1, 40}, {90, 200}, {1, 670}, {0, 5}, {1, 3}},
          .rope_base = rope_base};
}
std::string attention(Device& device, const Module& /*module*/) {
  return attention_error(device, ragged(0)) <= 1 ? "" : "values";
}
/// A warp of the decode kernel uses its stages again.
std::string wide_attention(Device& device, const Module& /*module*/) {
  AttentionCase wide = ragged(0);
  wide.shape.head_dim = 256;
  return attention_error(device, wide) <= 1 ? "" : "values";
}
/// Ragged prompts of heads of 128. On one multiprocessor no context is split, so that an item has
/// up to six tiles of keys.
AttentionCase tall(double rope_base) {
  return {.name = "tall",
          .shape = {.query_heads = 2, .kv_heads = 1, .head_dim = 128},
          .requests = {{150, 700}, {20, 21}, {9, 300}},
          .rope_base = rope_base};
}
std::unique_ptr<Device> one_processor(const Module& module) {
  ::setenv("KVTIER_EMULATED_PROCESSORS", "1", 1);
  return module.open(0, ElementType::bfloat16);
}
std::string tall_attention(Device& /*device*/, const Module& module) {
  return attention_error(*one_processor(module), tall(0)) <= 1 ? "" : "values";
}
std::string turned_tall_attention(Device& /*device*/, const Module& module) {
  return attention_error(*one_processor(module), tall(10000)) <= 1 ? "" : "values";
}
std::string turned_attention(Device& device, const Module& /*module*/) {
  return attention_error(device, ragged(10000)) <= 1 ? "" : "values";
}
std::string worst(const std::vector<std::pair<std::string, double>>& errors) {
  return std::ranges::all_of(errors, [](const auto& one) { return one.second <= 1; }) ? ""
                                                                                      : "values";
}
std::string rows(Device& device, const Module& /*module*/) { return worst(row_errors(device)); }
std::string decoder(Device& device, const Module& /*module*/) {
  return worst(decoder_errors(device));
}
std::string moves(Device& device, const Module& /*module*/) {
  return moved_rows_differ(device).empty() ? "" : "values";
}
std::string pieces(Device& device, const Module& /*module*/) {
  return moved_pieces_differ(device).empty() ? "" : "values";
}
std::string streams(Device& device, const Module& /*module*/) {
  return streams_lose_order(device).empty() ? "" : "values";
}

RowFunctionWork sum(const Buffer& buffer) {
  return {.function = RowFunction::add,
          .input = buffer.data(),
          .other = buffer.data(),
          .output = buffer.data(),
          .rows = 1,
          .width = 16};
}

std::string after_a_failure(Device& device, const Module& /*module*/) {
  const Buffer buffer = elements_on(device, random_values(16, 1));
  const auto stream = device.make_stream();
  try {
    const Buffer too_much(device, MemoryKind::device, device.info().memory);
    return "too much memory was allocated";
  } catch (const DeviceError&) {
  }
  try {
    device.row_function(sum(buffer), *stream);
  } catch (const DeviceError&) {
    return "error";
  }
  stream->synchronize();
  return "";
}

std::string odd_addresses(Device& device, const Module& /*module*/) {
  const Buffer buffer = elements_on(device, random_values(64, 1));
  const Buffer other = elements_on(device, random_values(64, 1));
  const auto stream = device.make_stream();
  bool refused = false;
  try {
    device.gather({.from = buffer.data() + 2, .to = other.data(), .rows = 2, .row = Bytes(16)},
                  *stream);
  } catch (const DeviceError&) {
    refused = true;
  }
  stream->synchronize();
  return refused ? "" : "values";
}

std::string memory(Device& device, const Module& module) {
  const std::int64_t before = module.counters().allocations;
  { const Buffer buffer = elements_on(device, random_values(64, 1)); }
  return module.counters().allocations == before ? "" : "leak";
}

/// A longer table of angles is made while work with the shorter one waits.
std::string longer_table(Device& device, const Module& /*module*/) {
  const Buffer keys = elements_on(device, random_values(std::size_t{2} * 64, 1));
  const auto stream = device.make_stream();
  for (const std::int64_t position : {0, 5000}) {
    device.rope({.rows = {.from = keys.data(),
                          .to = keys.data(),
                          .rows = 2,
                          .row = 64 * device.info().element},
                 .heads = 1,
                 .head_dim = 64,
                 .first_position = position},
                *stream);
  }
  stream->synchronize();
  return "";
}

/// A plan is replaced by a longer one while work with it waits.
std::string two_plans(Device& device, const Module& /*module*/) {
  const kernels::PagedAttentionShape shape{.query_heads = 1, .kv_heads = 1, .head_dim = 16};
  const auto stream = device.make_stream();
  const Buffer kv = elements_on(device, random_values(std::size_t{1200} * 16, 1));
  std::vector<std::int32_t> slots(1200);
  std::iota(slots.begin(), slots.end(), 0);
  const Buffer slots_on = numbers_on(device, slots);
  std::unique_ptr<AttentionPlan> plan;
  // Two short requests, then the same with a long one, which has parts; and the two again.
  std::vector<Buffer> kept;
  std::vector<const std::byte*> outputs;
  for (const std::vector<std::int64_t>& contexts :
       {std::vector<std::int64_t>{0, 10, 30}, {0, 10, 30, 1200}, {0, 10, 30}, {0, 25, 30}}) {
    std::vector<std::int64_t> queries(contexts.size());
    std::iota(queries.begin(), queries.end(), 0);
    kept.push_back(numbers_on(device, contexts));
    const auto* const contexts_on = kept.back().as<std::int64_t>();
    kept.push_back(numbers_on(device, queries));
    const auto* const queries_on = kept.back().as<std::int64_t>();
    kept.push_back(elements_on(device, std::vector<float>(std::size_t{3} * 16, NAN)));
    outputs.push_back(kept.back().data());
    device.plan_attention(plan, AttentionLibrary::own, shape, contexts, queries, *stream);
    device.attention({.shape = shape,
                      .queries = kv.data(),
                      .keys = kv.data(),
                      .values = kv.data(),
                      .output = kept.back().data(),
                      .batch = {.requests = std::ssize(contexts) - 1,
                                .slots = slots_on.as<std::int32_t>(),
                                .context_begin = contexts_on,
                                .query_begin = queries_on},
                      .plan = plan.get(),
                      .context_max = 1200},
                     *stream);
  }
  stream->synchronize();
  const auto row = [&](std::size_t which) { return elements_from(device, outputs[which], 32); };
  // The first two requests are the same three times.
  return row(0) == row(1) && row(0) == row(2) && row(0) != row(3) ? "" : "values";
}

std::string captured(Device& device, const Module& /*module*/) {
  return captured_steps_differ(device).empty() ? "" : "values";
}

/// Products of fewer rows after one of many: with the kernel that was chosen, if it takes them.
std::string products(Device& device, const Module& module) {
  const Buffer numbers = elements_on(device, random_values(std::size_t{2} * 640 * 16, 1));
  const auto stream = device.make_stream();
  const auto choices_for = [&](std::int64_t m) {
    const std::int64_t before = module.counters().blas_choices;
    device.gemm({.input = numbers.data(),
                 .weights = numbers.data(),
                 .output = numbers.data() + (640 * 16 * device.info().element).value,
                 .m = m,
                 .n = 16,
                 .k = 16},
                *stream);
    stream->synchronize();
    return module.counters().blas_choices - before;
  };
  static_cast<void>(choices_for(640));
  static_cast<void>(choices_for(577));
  return choices_for(128) == 1 && choices_for(100) == 0 ? "" : "choices";
}

/// The first work of a stream is captured.
std::string first_work(Device& device, const Module& /*module*/) {
  const Buffer numbers = elements_on(device, random_values(1024, 1));
  const auto stream = device.make_stream();
  const auto graph = device.capture(*stream, [&] {
    device.gemm({.input = numbers.data(),
                 .weights = numbers.data(),
                 .output = numbers.data() + 1024,
                 .m = 16,
                 .n = 16,
                 .k = 16},
                *stream);
  });
  device.launch(*graph, *stream);
  stream->synchronize();
  return "";
}

struct Planted {
  const char* name;
  Scenario scenario;
  /// That notices it.
  const char* check;
  int device = 0;
};

const std::vector<Planted>& all_planted() {
  static const std::vector<Planted> all{
      {"decode_without_query_barrier", attention, "race"},
      {"decode_without_wait", attention, "async"},
      {"decode_loads_over_what_others_read", wide_attention, "race"},
      {"decode_reads_a_slot_behind_the_last", attention, "bounds"},
      {"decode_leaves_weights_in_rows", attention, "values"},
      {"decode_turns_keys_by_the_next_position", turned_attention, "values"},
      {"decode_forgets_a_warp", attention, "values"},
      {"decode_without_last_barrier", attention, "race"},
      {"attend_sees_the_next_token", attention, "values"},
      {"attend_without_swizzle_when_it_loads", attention, "values"},
      {"prefill_loads_over_what_others_read", attention, "race"},
      {"prefill_takes_the_slots_of_the_last_tile", attention, "values"},
      {"prefill_turns_while_others_read", turned_attention, "race"},
      {"prefill_swaps_rows_of_weights", attention, "values"},
      {"warpgroups_without_proxy_fence", tall_attention, "proxy"},
      {"warpgroups_without_wait_for_scores", tall_attention, "async"},
      {"warpgroups_without_wait_for_copies", tall_attention, "async"},
      {"warpgroups_without_fence_of_sums", tall_attention, "async"},
      {"warpgroups_without_barrier", tall_attention, "race"},
      {"warpgroups_copy_into_keys_in_use", tall_attention, "async"},
      {"warpgroups_with_two_stages_of_values", tall_attention, "async"},
      {"warpgroups_swizzle_by_the_wrong_bits", tall_attention, "values"},
      {"warpgroups_swap_parts_of_values", tall_attention, "values"},
      {"warpgroups_forget_a_step", tall_attention, "values"},
      {"warpgroups_mask_one_key_less", tall_attention, "values"},
      {"warpgroups_mask_only_the_last_tile", tall_attention, "values"},
      {"warpgroups_forget_to_shrink", tall_attention, "values"},
      {"warpgroups_turn_keys_in_use", turned_tall_attention, "async"},
      {"warpgroups_read_rows_of_other_lanes", tall_attention, "race"},
      {"part_writes_behind_its_row", attention, "race"},
      {"merge_forgets_a_part", attention, "values"},
      {"plan_replaced_before_it_was_read", two_plans, "values"},
      {"plan_freed_while_used", two_plans, "freed"},
      {"shuffle_by_half_of_the_lanes", rows, "shuffle"},
      {"norm_ends_threads_before_the_barrier", rows, "barrier"},
      {"sum_without_barrier", rows, "unwritten"},
      {"sum_with_two_barriers_at_once", rows, "barrier"},
      {"sample_without_barrier", rows, "race"},
      {"rows_write_behind_the_last", moves, "bounds"},
      {"upload_forgets_the_last_bytes", pieces, "values"},
      {"upload_writes_whole_units", pieces, "values"},
      {"fold_shuffles_lanes_that_have_words", moves, "shuffle"},
      {"add_in_place_reads_its_neighbour", decoder, "race"},
      {"gated_takes_the_wrong_half", rows, "values"},
      {"stale_error_after_a_failure", after_a_failure, "error"},
      {"current_device_of_another_thread", streams, "device", 1},
      {"event_of_another_device", streams, "device", 1},
      {"wait_that_does_not_wait", streams, "values"},
      {"event_recorded_once", streams, "error"},
      {"gemm_on_the_legacy_stream", decoder, "values"},
      {"gemm_of_wrong_strides", decoder, "bounds"},
      {"kernel_chosen_for_each_number_of_rows", products, "choices"},
      {"kernel_of_fewer_rows", products, "error"},
      {"decode_plan_of_other_sizes", captured, "freed"},
      {"graph_without_its_memory", first_work, "error"},
      {"copy_from_freed_memory", attention, "pageable"},
      {"copy_that_returns_early", attention, "values"},
      {"stream_that_does_not_wait", streams, "freed"},
      {"copy_one_byte_short", pieces, "values"},
      {"rows_of_the_wrong_pitch", pieces, "values"},
      {"addresses_of_any_alignment", odd_addresses, "alignment"},
      {"free_memory_without_release", memory, "leak"},
      {"rotary_table_replaced_while_used", longer_table, "freed"},
  };
  return all;
}

/// The check that notices something in a process of its own: a fault of the emulation, a device's
/// error, or what the scenario finds. "" if nothing does.
std::string noticed_by(const std::string& name, const Scenario& scenario, int index,
                       Schedule schedule, std::uint64_t seed) {
  int ends[2];
  if (::pipe(ends) != 0) {
    return "pipe";
  }
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(ends[0]);
    std::string found;
    try {
      const Module module(KVTIER_EMULATION "/planted/lib/kvtier/kvtier_cuda.so");
      module.schedule(schedule, seed);
      if (!name.empty() && !module.plant(name)) {
        found = "no such fault";
      } else {
        try {
          const auto device = module.open(index, ElementType::bfloat16);
          found = scenario(*device, module);
        } catch (const DeviceError&) {
          found = "error";
        }
        const std::string fault = module.fault();
        found = fault.empty() ? found : fault.substr(0, fault.find(':'));
      }
    } catch (const std::exception& error) {
      found = error.what();
    }
    static_cast<void>(::write(ends[1], found.data(), found.size()));
    ::_exit(0);
  }
  ::close(ends[1]);
  std::string found(4096, '\0');
  const ssize_t size = ::read(ends[0], found.data(), found.size());
  ::close(ends[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  found.resize(static_cast<std::size_t>(std::max<ssize_t>(0, size)));
  return WIFEXITED(status) ? found : "crash";
}

class PlantedFaults : public testing::TestWithParam<Planted> {};
INSTANTIATE_TEST_SUITE_P(, PlantedFaults, testing::ValuesIn(all_planted()),
                         [](const auto& one) { return std::string(one.param.name); });

TEST_P(PlantedFaults, IsNoticed) {
  const Planted& planted = GetParam();
  std::string seen;
  for (const auto& [schedule, seed] : {std::pair(Schedule::lazy, 1),
                                       {Schedule::random, 1},
                                       {Schedule::random, 2},
                                       {Schedule::random, 3}}) {
    const std::string check = noticed_by(planted.name, planted.scenario, planted.device, schedule,
                                         static_cast<std::uint64_t>(seed));
    if (check == planted.check) {
      return;
    }
    seen += "\"" + check + "\" ";
  }
  ADD_FAILURE() << "expected " << planted.check << ", found " << seen;
}

TEST(PlantedFaultsOff, NothingIsNoticed) {
  const std::vector<std::pair<const char*, Scenario>> scenarios{
      {"attention", attention},     {"rows", rows},
      {"decoder", decoder},         {"moves", moves},
      {"pieces", pieces},           {"streams", streams},
      {"failure", after_a_failure}, {"addresses", odd_addresses},
      {"memory", memory},           {"table", longer_table},
      {"turned", turned_attention}, {"wide", wide_attention},
      {"tall", tall_attention},     {"turned tall", turned_tall_attention},
      {"plans", two_plans},         {"captured", captured},
      {"products", products},       {"first", first_work}};
  for (const auto& [name, scenario] : scenarios) {
    for (const Schedule schedule : {Schedule::eager, Schedule::lazy, Schedule::random}) {
      for (const int index : {0, 1}) {
        EXPECT_EQ(noticed_by("", scenario, index, schedule, 1), "")
            << name << " on device " << index << ", schedule " << static_cast<int>(schedule);
      }
    }
  }
}

TEST(PlantedFaultsOff, EveryOneHasItsTest) {
  std::set<std::string> tested;
  for (const Planted& planted : all_planted()) {
    tested.insert(planted.name);
  }
  const Module module(KVTIER_EMULATION "/planted/lib/kvtier/kvtier_cuda.so");
  const std::vector<std::string> names = module.planted();
  EXPECT_EQ(tested, std::set<std::string>(names.begin(), names.end()));
  EXPECT_GE(names.size(), 20U);
}

}  // namespace
}  // namespace kvtier::emulation
