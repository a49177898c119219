#include "hw/profile/profile_timing.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <numeric>
#include <utility>

#include <fmt/format.h>

#include "hw/timing/roofline.hpp"
#include "sim/core/assert.hpp"
#include "sim/core/rounding.hpp"
#include "sim/core/statistics.hpp"

namespace kvtier {
namespace {

/// Attention takes at least 9 to 13 us in the published tables, however little it reads. Sparse
/// attention has an indexer before it; state layers have a convolution, gates and a norm around
/// their update.
constexpr double kShortestAttention = 10e-6;
constexpr double kShortestSparseAttention = 25e-6;
constexpr double kShortestStateLayer = 25e-6;

/// One before attention, one before the MLP.
constexpr double kNormsPerLayer = 2;

/// Prompt tokens of an iteration from which an engine's prompt_factor applies in full.
constexpr double kLongPrompts = 512;

std::string matrix_text(std::int64_t n, std::int64_t k, std::int64_t element_bytes) {
  return fmt::format("{} x {} in {} B", n, k, element_bytes);
}

std::string attention_text(const Shape& shape) {
  return fmt::format("{} heads, {} KV heads, {} wide in {} B", shape.at("attention_heads"),
                     shape.at("kv_heads"), shape.at("head_dim"), shape.at("element_bytes"));
}

void add_once(std::vector<std::string>& names, std::string name) {
  if (std::ranges::find(names, name) == names.end()) {
    names.push_back(std::move(name));
  }
}

/// The shapes of one operation that a profile has, as messages name them.
std::string known_shapes(const Profile& profile, OperationId operation) {
  std::vector<std::string> texts;
  for (const ProfileTable* table : find_tables(profile, operation)) {
    if (table->cells.empty()) {
      continue;
    }
    add_once(texts, operation == OperationId::gemm
                        ? matrix_text(table->shape.at("n"), table->shape.at("k"),
                                      table->shape.at("element_bytes"))
                        : attention_text(table->shape));
  }
  if (operation == OperationId::gemm) {
    for (const ProfileTable* table : find_tables(profile, OperationId::gemm_grid)) {
      texts.push_back(
          fmt::format("a grid of n and k in {}", to_string(table->dtype.value_or(DataType::bf16))));
    }
  }
  constexpr std::size_t kShown = 8;
  if (texts.size() > kShown) {
    const std::size_t more = texts.size() - kShown;
    texts.resize(kShown);
    texts.push_back(fmt::format("{} more", more));
  }
  return texts.empty() ? "none" : fmt::format("{}", fmt::join(texts, "; "));
}

/// Rows are read and written once. A kernel takes at least 2.5 us, the shortest time measured on
/// RTX PRO 6000 and H100. Residuals are added by the norm that follows them.
ProfileGrid::Limit element_roofline(OperationId operation, std::string_view variant,
                                    const Shape& shape, const Rates& rates) {
  constexpr double kShortestKernel = 2.5e-6;
  const double floor = variant == "residual" ? 0 : kShortestKernel;
  const std::int64_t width = operation == OperationId::rotation
                                 ? shape.at("heads") * shape.at("head_dim")
                                 : shape.at("width");
  return [=, bytes = shape.at("element_bytes")](double rows, double) {
    return std::max(floor, 2 * rows_seconds(width, bytes, rows, rates));
  };
}

/// Tokens that a layer of this kind sees; 0: all.
std::int64_t window_of(const ModelConfig& model, const LayerGroup& group) {
  return group.attention == AttentionKind::window ? model.window->value : 0;
}

/// Whether heads and widths alone describe the attention of a kind of layer.
bool has_plain_attention(const ModelConfig& model, const LayerGroup& group) {
  return !model.sparse &&
         (group.attention == AttentionKind::full || group.attention == AttentionKind::window);
}

/// Whether one table may have the attention of a kind of layer with its projections.
bool has_latent_attention(const ModelConfig& model, const LayerGroup& group) {
  return group.attention == AttentionKind::latent && (!model.sparse || latent_variant(model));
}

bool has_all_reduce(const Profile& profile, std::int64_t gpus, const char* variant) {
  return std::ranges::any_of(
      find_tables(profile, OperationId::all_reduce, variant), [&](const ProfileTable* table) {
        return std::ranges::any_of(table->cells,
                                   [&](const ProfileCell& cell) { return cell.at[0] == gpus; });
      });
}

/// The first variant that the profile has.
std::optional<ProfileGrid> all_reduce_grid(const Profile& profile, std::int64_t gpus,
                                           const std::array<const char*, 4>& variants) {
  if (gpus == 1) {
    return std::nullopt;
  }
  for (const char* variant : variants) {
    for (const ProfileTable* table : find_tables(profile, OperationId::all_reduce, variant)) {
      std::vector<ProfileCell> cells;
      for (const ProfileCell& cell : table->cells) {
        if (cell.at[0] == gpus) {
          cells.push_back(cell);
          cells.back().at = {cell.at[1]};
        }
      }
      if (!cells.empty()) {
        // Beyond the largest message, time is proportional to the bytes.
        constexpr double kNoLimit = 1e-18;
        return ProfileGrid(cells, [](double bytes, double) { return bytes * kNoLimit; });
      }
    }
  }
  return std::nullopt;
}

/// The shortest measured idle time from which on a pass takes more than half of the additional time
/// that it takes after the longest one; nullopt if idle time costs no more than noise.
std::optional<SimDuration> idle_gap_of(const ProfileTable& passes) {
  std::vector<ProfileCell> cells = passes.cells;
  std::ranges::sort(cells, {}, &ProfileCell::at);
  constexpr double kNoise = 1.1;
  if (cells.size() < 2 || cells.back().median_seconds <= kNoise * cells.front().median_seconds) {
    return std::nullopt;
  }
  const double half = std::midpoint(cells.front().median_seconds, cells.back().median_seconds);
  std::size_t cold = cells.size() - 1;
  while (cells[cold - 1].median_seconds > half) {
    --cold;
  }
  constexpr std::int64_t kNsPerUs = 1000;
  return SimDuration(cells[cold].at[0] * kNsPerUs);
}

}  // namespace

/// Makes the work of a timing model from a profile, and names what the profile lacks.
class ProfileTiming::Builder {
 public:
  Builder(const ModelConfig& model, const HardwareConfig& hardware, const Profile& profile,
          const std::optional<EngineConfig>& engine, ProfileTiming& timing)
      : model_(&model),
        hardware_(&hardware),
        profile_(&profile),
        timing_(&timing),
        rank_gpus_(gpus_of_rank(hardware)),
        stage_gpus_(gpus_of_stage(hardware)),
        expert_factor_(engine ? engine->expert_factor : 1) {
    if (engine) {
      fused_ = engine->fused;
      if (engine->all_reduce == AllReduceLaunch::fused &&
          has_all_reduce(profile, rank_gpus_, "fused")) {
        fused_norms_ = timing.ranks_ == 1 ? kAllReducesPerLayer : 1;
      }
    }
  }

  [[nodiscard]] TokenWork matrix(const MatrixShape& matrix) {
    TokenWork work{.count = 1, .roofline = {}, .grid = {}};
    const DataType type = type_of_matrix(*model_, matrix.name);
    if (const auto shaped = table_of_matrix(*profile_, *model_, matrix)) {
      work.grid.emplace(make_grid(*profile_, shaped->table));
      work.extrapolated = shaped->extrapolated;
      return work;
    }
    const bool is_plain = type == plain_type(model_->bytes_per_element);
    lacks(is_plain ? fmt::format("gemm {}", matrix.name)
                   : fmt::format("gemm {} in {}", matrix.name, to_string(type)));
    Rates rates = timing_->attained_;
    if (!is_plain) {
      rates.flops_per_second =
          attained_flops(*model_, *hardware_, format_of_matrix(*model_, matrix.name), 1);
    }
    work.roofline = [matrix, bytes = bytes_of(type), rates](double tokens, double) {
      return matrix_seconds(matrix, bytes, tokens, rates);
    };
    return work;
  }

  void add_elements(std::vector<TokenWork>& to, double count, OperationId operation,
                    const char* variant, const Shape& shape, bool of_stage = false) {
    TokenWork work{
        .count = count, .roofline = {}, .is_minor = true, .grid = {}, .of_stage = of_stage};
    const std::string name = fmt::format("{} {}", to_string(operation), variant);
    if (const ProfileTable* table = find_table(*profile_, operation, shape, variant)) {
      work.grid = make_grid(*profile_, *table);
    } else if (hardware_->unmeasured == Unmeasured::roofline) {
      work.roofline = element_roofline(operation, variant, shape, timing_->attained_);
      lacks(name);
    } else {
      add_once(timing_->left_out_, name);
      return;
    }
    to.push_back(std::move(work));
  }

  [[nodiscard]] Shape rows(std::int64_t width) const {
    return {{"width", width}, {"element_bytes", model_->bytes_per_element}};
  }

  /// The next of the timing model's kinds of layers. `keys`: the positions of keys as attention
  /// reads them.
  [[nodiscard]] LayerKind kind(const LayerGroup& group, KeyPositions keys) {
    LayerKind kind{.count = static_cast<double>(group.count), .work = {}, .attention = {}};
    const bool has_module = add_attention(kind.attention, group, keys);
    std::int64_t mlp_width = 0;
    for (const MatrixShape& shape : layer_matrices(*model_, group, rank_gpus_, stage_gpus_)) {
      const bool is_attention = is_matrix_of_attention(shape.name);
      if (!(is_attention && has_module)) {
        kind.work.push_back(matrix(shape));
        kind.work.back().of_stage = !is_attention;
      }
      mlp_width = shape.k;
    }
    add_elements_of_layer(kind, group, keys, mlp_width);
    if (group.has_experts) {
      add_experts(kind);
    }
    return kind;
  }

 private:
  /// Attention of a kind; true if its projections are in it.
  bool add_attention(Attention& attention, const LayerGroup& group, KeyPositions keys) {
    attention.shape = measured_attention(*model_, rank_gpus_);
    attention.window = window_of(*model_, group);
    attention.of_rank = !has_plain_attention(*model_, group);
    attention.is_state = group.attention == AttentionKind::state;
    const bool is_latent = has_latent_attention(*model_, group);
    // Dense models have no floor, so that their roofline stays one line.
    attention.shortest = group.attention == AttentionKind::state ? kShortestStateLayer
                         : model_->sparse                        ? kShortestSparseAttention
                         : timing_->roofline_                    ? kShortestAttention
                                                                 : 0;
    if (attention.is_state) {
      const auto prefill =
          table_of_state(*profile_, OperationId::state_prefill, *model_, rank_gpus_);
      const auto decode = table_of_state(*profile_, OperationId::state_decode, *model_, rank_gpus_);
      if (prefill && decode) {
        attention.extend = make_grid(*profile_, prefill->table);
        attention.decode = make_grid(*profile_, decode->table);
      } else {
        lacks("state layers");
      }
      return false;
    }
    if (attention.of_rank && !is_latent) {
      lacks("sparse attention");
      return false;
    }
    const auto grid = [&](OperationId operation) -> std::optional<ProfileGrid> {
      const auto shaped =
          is_latent ? table_of_latent_attention(*profile_, operation, *model_, rank_gpus_)
                    : table_of_attention(*profile_, operation, attention.shape, attention.window,
                                         attention.window > 0 ? KeyPositions::embedded : keys);
      if (!shaped) {
        lacks(to_string(operation));
        return std::nullopt;
      }
      attention.past_by_law = attention.past_by_law || shaped->past_by_law;
      attention.extrapolated = attention.extrapolated || shaped->extrapolated;
      return make_grid(*profile_, shaped->table);
    };
    attention.extend = grid(is_latent ? OperationId::mla_prefill : OperationId::prefill_attention);
    attention.decode = grid(is_latent ? OperationId::mla_decode : OperationId::decode_attention);
    if (is_latent && !(attention.extend && attention.decode)) {
      attention.extend.reset();
      attention.decode.reset();
    }
    return is_latent && attention.extend.has_value();
  }

  void add_elements_of_layer(LayerKind& kind, const LayerGroup& group, KeyPositions keys,
                             std::int64_t mlp_width) {
    using enum OperationId;
    const AttentionShape& shape = kind.attention.shape;
    const std::int64_t hidden = model_->hidden_size;
    if (const double norms = kNormsPerLayer - fused_norms_; norms > 0) {
      add_elements(kind.work, norms, elementwise, "norm", rows(hidden));
    }
    add_elements(kind.work, 2, elementwise, "residual", rows(hidden));
    if (!group.has_experts || model_->experts->shared > 0) {
      add_elements(kind.work, 1, elementwise, "activation", rows(mlp_width), true);
    }
    const bool has_heads =
        group.attention == AttentionKind::full || group.attention == AttentionKind::window;
    if (has_heads) {
      if (!is_fused(FusedWork::kv_write)) {
        add_elements(kind.work, 1, elementwise, "kv_write",
                     rows(2 * shape.kv_heads * shape.head_dim));
      }
      if (model_->norm_over_heads) {
        add_norm_over_heads(kind.work, shape);
      }
      if (keys == KeyPositions::embedded && !is_fused(FusedWork::rope)) {
        add_elements(kind.work, 1, rotation, "rope",
                     {{"heads", shape.attention_heads + shape.kv_heads},
                      {"head_dim", shape.head_dim},
                      {"element_bytes", model_->bytes_per_element}});
      }
    }
    if (kind.attention.is_state && kind.attention.extend) {
      const StateConfig& state = *model_->state;
      const std::int64_t keys_width = state.key_heads * state.key_dim / rank_gpus_;
      const std::int64_t values_width = state.value_heads * state.value_dim / rank_gpus_;
      add_elements(kind.work, 1, elementwise, "convolution", rows(2 * keys_width + values_width));
      add_elements(kind.work, 1, elementwise, "norm", rows(values_width));  // gated
    }
    if (is_fused(FusedWork::quantize)) {
      return;
    }
    // Activations of attention and of the MLP are quantized where norms write them.
    if (computes_in_few_bits(model_->precision.attention)) {
      add_elements(kind.work, 1, elementwise, "quantize", rows(hidden));
    }
    if (computes_in_few_bits(group.has_experts ? model_->precision.experts
                                               : model_->precision.mlp)) {
      add_elements(kind.work, 1, elementwise, "quantize", rows(hidden), true);
    }
  }

  /// Kernels sum up squares, exchange two numbers for each token, and apply them.
  void add_norm_over_heads(std::vector<TokenWork>& to, const AttentionShape& shape) {
    const std::int64_t width = (shape.attention_heads + shape.kv_heads) * shape.head_dim;
    add_elements(to, 2, OperationId::elementwise, "norm_over_heads", rows(width));
    constexpr double kBytes = 2 * sizeof(float);
    TokenWork exchange{.count = 1, .roofline = {}, .is_minor = true, .grid = {}};
    if (timing_->rank_all_reduce_grid_) {
      exchange.roofline = [grid = *timing_->rank_all_reduce_grid_](double tokens, double) {
        return grid.at(tokens * kBytes).seconds;
      };
    } else {
      exchange.roofline = [fixed = timing_->rank_all_reduce_.fixed_seconds](double, double) {
        return fixed;
      };
    }
    to.push_back(std::move(exchange));
  }

  [[nodiscard]] bool is_fused(FusedWork work) const {
    return (work == FusedWork::quantize && fused_norms_ > 0) ||
           std::ranges::find(fused_, work) != fused_.end();
  }

  [[nodiscard]] bool computes_in_few_bits(const std::optional<NumberFormat>& format) const {
    if (!format) {
      return false;
    }
    const NumberFormat compute = model_->precision.compute.value_or(*format);
    return compute == NumberFormat::fp8 || compute == NumberFormat::int8 ||
           compute == NumberFormat::nvfp4;
  }

  void add_experts(LayerKind& kind) {
    const std::int64_t hidden = model_->hidden_size;
    // Choosing experts, and the weighted sum of what they return.
    add_elements(kind.work, 1, OperationId::elementwise, "choose_experts",
                 rows(model_->experts->routed), true);
    add_elements(kind.work, 1, OperationId::elementwise, "sum_experts", rows(hidden), true);
    TokenWork work{.count = expert_factor_, .roofline = {}, .grid = {}, .of_stage = true};
    if (const auto shaped =
            table_of_experts(*profile_, *model_, stage_gpus_, hardware_->parallel.expert)) {
      work.grid.emplace(make_grid(*profile_, shaped->table));
      work.extrapolated = shaped->extrapolated;
    } else {
      lacks("experts");
      work.count = 1;
      work.roofline = [roofline = timing_->roofline_.get(), kind_index = timing_->kinds_.size()](
                          double tokens, double) {
        return roofline->routed_experts_of(kind_index, tokens);
      };
    }
    kind.work.push_back(std::move(work));
  }

  void lacks(const std::string& operation) {
    KVTIER_ASSERT(hardware_->unmeasured == Unmeasured::roofline, "the operation was measured");
    add_once(timing_->from_roofline_, operation);
  }

  const ModelConfig* model_;
  const HardwareConfig* hardware_;
  const Profile* profile_;
  ProfileTiming* timing_;
  std::int64_t rank_gpus_;
  std::int64_t stage_gpus_;
  double expert_factor_;
  std::vector<FusedWork> fused_;
  /// Norms of a layer that are in the kernels of all-reduces.
  double fused_norms_ = 0;
};

ProfileTiming::ProfileTiming(const ModelConfig& model, const HardwareConfig& hardware,
                             KeyPositions positions, std::int64_t max_batch,
                             const std::optional<EngineConfig>& engine)
    : layers_(model.layers),
      ranks_(hardware.parallel.attention_dp),
      iteration_overhead_(engine_step_time(engine, hardware)),
      request_seconds_(engine_request_seconds(engine, hardware)),
      prompt_factor_(engine ? engine->prompt_factor : 1),
      attained_(attained_rates(hardware)),
      context_window_(static_cast<double>(model.context_window.value)),
      rank_all_reduce_(all_reduce(model, hardware, gpus_of_rank(hardware))),
      stage_all_reduce_(all_reduce(model, hardware, gpus_of_stage(hardware))),
      hidden_bytes_(static_cast<double>(model.hidden_size) * kActivationBytes) {
  KVTIER_ASSERT(max_batch >= 1, "a timing model serves at least one request");
  KVTIER_ASSERT(hardware.profile && hardware.profile->loaded, "the profile has been read");
  const Profile& profile = *hardware.profile->loaded;
  const std::vector<LayerGroup> groups = layer_groups(model);
  if (groups.size() > 1 || model.experts || !has_plain_attention(model, groups.front()) ||
      window_of(model, groups.front()) > 0) {
    roofline_ = std::make_unique<RooflineTiming>(model, hardware, 1);
  }
  const auto launch = engine ? engine->all_reduce : AllReduceLaunch::graph;
  rank_all_reduce_grid_ = all_reduce_grid(
      profile, gpus_of_rank(hardware),
      launch == AllReduceLaunch::eager   ? std::array{"eager", "graph", "nccl", "fused"}
      : launch == AllReduceLaunch::fused ? std::array{"fused", "graph", "eager", "nccl"}
                                         : std::array{"graph", "eager", "nccl", "fused"});
  // Between ranks engines gather and scatter with NCCL.
  stage_all_reduce_grid_ =
      all_reduce_grid(profile, gpus_of_stage(hardware), {"nccl", "graph", "eager", "fused"});
  Builder builder(model, hardware, profile, engine, *this);

  const AttentionShape shape = measured_attention(model, gpus_of_rank(hardware));
  const auto rotates = [&](OperationId operation) {
    return find_attention_table(profile, operation, shape, KeyPositions::decoupled) != nullptr;
  };
  const KeyPositions keys = positions == KeyPositions::decoupled &&
                                    rotates(OperationId::prefill_attention) &&
                                    rotates(OperationId::decode_attention)
                                ? KeyPositions::decoupled
                                : KeyPositions::embedded;
  for (const LayerGroup& group : groups) {
    kinds_.push_back(builder.kind(group, keys));
  }
  const MatrixShape head = head_matrix(model, gpus_of_rank(hardware));
  row_work_.push_back(builder.matrix(head));
  for (LayerKind& kind : kinds_) {
    if (kind.attention.extend && kind.attention.decode && kind.attention.window == 0 &&
        !kind.attention.of_rank) {
      kind.attention.mixed = mixed_factors(profile, kind);
    }
  }
  using enum OperationId;
  builder.add_elements(token_work_, 1, elementwise, "embedding", builder.rows(model.hidden_size));
  builder.add_elements(row_work_, 1, elementwise, "sampling", builder.rows(head.n));

  // Whole steps were measured on one device, without an engine, and with keys stored without
  // positions.
  if (hardware.gpus == 1 && from_roofline_.empty()) {
    if (positions == KeyPositions::decoupled && !engine) {
      measure_overheads(profile, model);
    } else {
      const ProfileTiming measured(model, hardware, KeyPositions::decoupled, 1);
      warm_up_ = measured.warm_up_;
      idle_gap_ = measured.idle_gap_;
      decode_corrections_ = measured.decode_corrections_;
    }
  }
  decode_.reserve(static_cast<std::size_t>(max_batch));
  for (std::int64_t batch = 1; batch <= max_batch; ++batch) {
    decode_.push_back(make_decode(batch));
  }
}

ProfileTiming::~ProfileTiming() = default;

std::optional<FactorGrid> ProfileTiming::mixed_factors(const Profile& profile,
                                                       const LayerKind& kind) const {
  const ProfileTable* table =
      find_table(profile, OperationId::mixed_attention, shape_of(kind.attention.shape));
  if (table == nullptr) {
    return std::nullopt;
  }
  std::vector<FactorGrid::Point> points;
  for (const ProfileCell& cell : table->cells) {
    const auto at = [&](std::size_t axis) { return static_cast<double>(cell.at[axis]); };
    const double parts =
        extend_attention(kind, at(0), at(1)).seconds + decode_attention(kind, at(2), at(3)).seconds;
    points.push_back({.at = {at(0), at(1), at(2), at(3)}, .factor = cell.median_seconds / parts});
  }
  return FactorGrid(points);
}

void ProfileTiming::measure_overheads(const Profile& profile, const ModelConfig& model) {
  const Shape shape = step_shape(model, model.bytes_per_element);
  const double overhead = iteration_overhead_.seconds();  // no part of a step
  // The median time beyond the operations and the corrections set so far; nullopt without cells.
  const auto beyond_parts = [&](const char* variant) -> std::optional<double> {
    std::vector<double> beyond;
    if (const ProfileTable* steps = find_table(profile, OperationId::model_step, shape, variant)) {
      for (const ProfileCell& cell : steps->cells) {
        const PrefillPart part{.added = Tokens(cell.at[1]), .past = Tokens(cell.at[2])};
        if (cell.at[0] == 1 && part.added > Tokens(1)) {
          const double parts = prefill(std::span(&part, 1)).total.seconds() - overhead;
          beyond.push_back(cell.median_seconds - parts);
        }
      }
    }
    return beyond.empty() ? std::nullopt : std::optional(median(std::move(beyond)));
  };
  std::map<std::int64_t, std::vector<double>> decodes;
  if (const ProfileTable* runs = find_table(profile, OperationId::model_step, shape, kDecodeWarm)) {
    for (const ProfileCell& cell : runs->cells) {
      const Tokens context = decode_context(cell);
      const std::int64_t ticks = piece_at(make_decode(cell.at[0]).pieces, context).at(context);
      const double parts = SimDuration(ticks / kTicksPerNs).seconds() - overhead;
      decodes[cell.at[0]].push_back(cell.median_seconds - parts);
    }
  }
  warm_up_.cold = duration_from_seconds(std::max(0.0, beyond_parts(kCold).value_or(0)));
  const double in_run = std::max(0.0, -beyond_parts(kWarm).value_or(0));
  const double second = std::clamp(-beyond_parts(kSecond).value_or(-in_run), 0.0, in_run);
  warm_up_.second = warm_up_.cold - duration_from_seconds(second);
  warm_up_.warm = warm_up_.cold - duration_from_seconds(in_run);
  for (auto& [batch, beyond] : decodes) {
    decode_corrections_[batch] = median(std::move(beyond));
  }
  if (const ProfileTable* passes = find_table(profile, OperationId::idle_pass, shape)) {
    idle_gap_ = idle_gap_of(*passes).value_or(idle_gap_);
  }
}

double ProfileTiming::decode_correction(std::int64_t batch) const {
  if (decode_corrections_.empty()) {
    return 0;
  }
  const auto above = decode_corrections_.lower_bound(batch);
  if (above == decode_corrections_.end()) {
    return decode_corrections_.rbegin()->second;
  }
  if (above == decode_corrections_.begin()) {
    return above->second;
  }
  const auto& [smaller, correction] = *std::prev(above);
  return std::lerp(
      correction, above->second,
      static_cast<double>(batch - smaller) / static_cast<double>(above->first - smaller));
}

ProfileTiming::WorkTime::WorkTime(const ProfileGrid::Time& time, bool beyond_shapes)
    : seconds(time.seconds), beyond(time.extrapolated || beyond_shapes ? time.seconds : 0) {}

ProfileTiming::WorkTime ProfileTiming::WorkTime::of_roofline(double seconds) {
  WorkTime time;
  time.seconds = time.roofline = seconds;
  return time;
}

void ProfileTiming::WorkTime::add(const WorkTime& term, double count) {
  seconds += term.seconds * count;
  beyond += term.beyond * count;
  roofline += term.roofline * count;
  cached_law += term.cached_law * count;
}

void ProfileTiming::WorkTime::multiply(double factor) {
  seconds *= factor;
  beyond *= factor;
  roofline *= factor;
  cached_law *= factor;
}

TimeShares ProfileTiming::WorkTime::shares_of(double pass_seconds) const {
  return pass_seconds > 0 ? TimeShares{.roofline = std::min(1.0, roofline / pass_seconds),
                                       .cached_law = std::min(1.0, cached_law / pass_seconds)}
                          : TimeShares{};
}

bool ProfileTiming::WorkTime::is_extrapolated() const {
  constexpr double kMinor = 0.05;
  return beyond > kMinor * seconds;
}

ProfileTiming::WorkTime ProfileTiming::TokenWork::at(double tokens) const {
  if (grid) {
    return {grid->at(tokens), extrapolated};
  }
  WorkTime time = WorkTime::of_roofline(roofline(tokens, 0));
  if (is_minor) {
    time.roofline = 0;
  }
  return time;
}

ProfileTiming::WorkTime ProfileTiming::all_reduces(const LayerTokens& tokens) const {
  WorkTime sum;
  const auto add_ring = [&](const std::optional<ProfileGrid>& grid, const AllReduceTime& ring,
                            double count, double moved) {
    if (grid) {
      sum.add({grid->at(moved * hidden_bytes_), false}, count);
    } else {
      sum.add(WorkTime::of_roofline(moved * (count * ring.seconds_per_token) +
                                    count * ring.fixed_seconds));
    }
  };
  if (ranks_ == 1) {
    add_ring(rank_all_reduce_grid_, rank_all_reduce_, kAllReducesPerLayer, tokens.rank);
  } else {
    add_ring(rank_all_reduce_grid_, rank_all_reduce_, 1, tokens.rank);
    add_ring(stage_all_reduce_grid_, stage_all_reduce_, 1, tokens.all);
  }
  return sum;
}

ProfileTiming::WorkTime ProfileTiming::dense(const LayerKind& kind,
                                             const LayerTokens& tokens) const {
  WorkTime sum = all_reduces(tokens);
  for (const TokenWork& work : kind.work) {
    sum.add(work.at(work.of_stage ? tokens.all : tokens.rank), work.count);
  }
  return sum;
}

ProfileTiming::WorkTime ProfileTiming::outside(double tokens, double rows) const {
  WorkTime sum;
  for (const TokenWork& work : token_work_) {
    sum.add(work.at(tokens), work.count);
  }
  for (const TokenWork& work : row_work_) {
    sum.add(work.at(rows), work.count);
  }
  return sum;
}

ProfileTiming::WorkTime ProfileTiming::extend_attention(const LayerKind& kind, double added,
                                                        double past) const {
  const Attention& attention = kind.attention;
  const auto roofline = [&](double fresh, double before) {
    return roofline_->attention_of(index_of(kind),
                                   {.added = Tokens(static_cast<std::int64_t>(fresh)),
                                    .past = Tokens(static_cast<std::int64_t>(before))});
  };
  if (!attention.extend) {
    if (attention.of_rank || attention.window > 0) {
      return WorkTime::of_roofline(std::max(attention.shortest, roofline(added, past)));
    }
    return WorkTime::of_roofline(std::max(
        attention.shortest, extend_attention_seconds(attention.shape, added, past, attained_)));
  }
  if (attention.is_state) {
    return {attention.extend->at(added), attention.extrapolated};
  }
  if (attention.of_rank) {
    // Beyond the grid, `at` is proportional to the tokens: as many prompts as the longest measured
    // one. The roofline adds the pairs of tokens of different prompts, and those with past tokens.
    const ProfileGrid::Time time = attention.extend->at(added, 0);
    const double measured = std::min(added, attention.extend->first_axis_end());
    WorkTime sum(time, attention.extrapolated || past > 0);
    if (past > 0 || added > measured) {
      const double inside = added / measured * roofline(measured, 0);
      const double more = std::max(0.0, roofline(added, past) - inside);
      sum.seconds += more;
      sum.roofline += more;
      sum.beyond += sum.beyond > 0 ? more : 0;
    }
    return sum;
  }
  const bool by_law = attention.past_by_law && past > 0;
  WorkTime time(attention.extend->at(added, past), attention.extrapolated || by_law);
  if (by_law) {
    time.cached_law = std::max(0.0, time.seconds - attention.extend->at(added, 0).seconds);
  }
  return time;
}

ProfileTiming::WorkTime ProfileTiming::decode_attention(const LayerKind& kind, double batch,
                                                        double context) const {
  const Attention& attention = kind.attention;
  if (!attention.decode) {
    if (attention.of_rank || attention.window > 0) {
      return WorkTime::of_roofline(
          std::max(attention.shortest,
                   roofline_->decode_attention_of(index_of(kind), batch, batch * context)));
    }
    return WorkTime::of_roofline(std::max(
        attention.shortest, decode_attention_seconds(attention.shape, batch * context, attained_)));
  }
  return {attention.decode->at(batch, attention.is_state ? 0 : context), attention.extrapolated};
}

template <class TimeOf>
ProfileTiming::WorkTime ProfileTiming::over_layers(double by, TimeOf time_of) const {
  if (kinds_.size() == 1) {
    WorkTime time = time_of(kinds_.front());
    if (by == 1) {
      time.multiply(kinds_.front().count);
    }
    return time;
  }
  WorkTime sum;
  for (const LayerKind& kind : kinds_) {
    sum.add(time_of(kind), kind.count / by);
  }
  return sum;
}

ProfileTiming::WorkTime ProfileTiming::attention(const LayerKind& kind,
                                                 std::span<const PrefillPart> parts, double batch,
                                                 double context) const {
  WorkTime sum;
  if (batch > 0) {
    sum.add(decode_attention(kind, batch, context / batch));
  }
  double prefilled = 0;
  double past_pairs = 0;
  for (const PrefillPart& part : parts) {
    const double added = static_cast<double>(part.added.value);
    const double past = static_cast<double>(part.past.value);
    prefilled += added;
    past_pairs += added * past;
    sum.add(extend_attention(kind, added, past));
  }
  if (kind.attention.mixed && batch > 0 && prefilled > 0) {
    sum.multiply(
        kind.attention.mixed->at({prefilled, past_pairs / prefilled, batch, context / batch}));
  }
  return sum;
}

PrefillTime ProfileTiming::iteration(std::span<const PrefillPart> parts, std::int64_t batch,
                                     Tokens context) const {
  KVTIER_ASSERT(!parts.empty(), "a prefill has at least one part");
  KVTIER_ASSERT(batch >= 0 && batch <= static_cast<std::int64_t>(decode_.size()),
                "the batch is one the timing model was made for");
  std::int64_t prefilled = 0;
  for (const PrefillPart& part : parts) {
    KVTIER_ASSERT(part.added > Tokens(0) && part.past >= Tokens(0),
                  "a part of a prefill computes at least one token");
    prefilled += part.added.value;
  }
  // Running requests are dealt evenly: each rank has as many as the largest.
  const std::int64_t running = divide_up(batch, ranks_);
  const double running_context =
      static_cast<double>(context.value) *
      (ranks_ == 1 || batch == 0 ? 1 : static_cast<double>(running) / static_cast<double>(batch));
  std::vector<std::vector<PrefillPart>> dealt;
  LayerTokens tokens{.rank = static_cast<double>(batch + prefilled),
                     .all = static_cast<double>(batch + prefilled)};
  if (ranks_ > 1) {
    dealt.resize(static_cast<std::size_t>(std::min<std::int64_t>(ranks_, std::ssize(parts))));
    std::vector<std::int64_t> of_rank(dealt.size(), running);
    for (std::size_t i = 0; i < parts.size(); ++i) {
      dealt[i % dealt.size()].push_back(parts[i]);
      of_rank[i % dealt.size()] += parts[i].added.value;
    }
    tokens.rank = static_cast<double>(*std::ranges::max_element(of_rank));
  }
  const WorkTime matrices = over_layers(static_cast<double>(layers_),
                                        [&](const LayerKind& kind) { return dense(kind, tokens); });
  WorkTime layer = over_layers(static_cast<double>(layers_), [&](const LayerKind& kind) {
    if (ranks_ == 1) {
      return attention(kind, parts, static_cast<double>(running), running_context);
    }
    WorkTime longest;
    for (const std::vector<PrefillPart>& own : dealt) {
      const WorkTime time = attention(kind, own, static_cast<double>(running), running_context);
      longest = time.seconds > longest.seconds ? time : longest;
    }
    return longest;
  });
  layer.add(matrices);
  const double rows = static_cast<double>(std::ssize(parts) + batch);
  WorkTime rest =
      outside(tokens.rank, ranks_ == 1 ? rows : std::ceil(rows / static_cast<double>(ranks_)));
  if (prompt_factor_ != 1) {
    const double share = std::min(1.0, static_cast<double>(prefilled) / kLongPrompts);
    const double factor = 1 + (prompt_factor_ - 1) * share;
    layer.multiply(factor);
    rest.multiply(factor);
  }
  WorkTime all = rest;
  all.add(layer, static_cast<double>(layers_));
  rest.seconds += rows * request_seconds_;
  const SimDuration layer_time = duration_from_seconds(layer.seconds);
  // Warm caches save at most the time of reading weights.
  const SimDuration least = SimDuration(0) - duration_from_seconds(matrices.seconds) * layers_;
  return {.total = layer_time * layers_ + duration_from_seconds(rest.seconds) +
                   iteration_overhead_ + warm_up_.cold,
          .layer = layer_time,
          .warm_up = {.cold = warm_up_.cold,
                      .second = std::max(warm_up_.second, least),
                      .warm = std::max(warm_up_.warm, least)},
          .extrapolated = all.is_extrapolated(),
          .shares =
              all.shares_of(all.seconds + rows * request_seconds_ + iteration_overhead_.seconds())};
}

/// Knots are in whole ticks, and slopes between them are rounded down. The time therefore never
/// falls, and a piece ends below the next knot by less than a tick for each of its tokens.
ProfileTiming::DecodeBatch ProfileTiming::make_decode(std::int64_t batch) const {
  // Requests of one rank; a piece counts the contexts of all.
  const double requests = static_cast<double>(divide_up(batch, ranks_));
  const LayerTokens tokens{.rank = requests, .all = static_cast<double>(batch)};
  const WorkTime layers =
      over_layers(1, [&](const LayerKind& kind) { return dense(kind, tokens); });
  const WorkTime rest = outside(requests, requests);
  DecodeBatch result;
  result.outside_layers = ticks_from_seconds(rest.seconds + iteration_overhead_.seconds() +
                                             static_cast<double>(batch) * request_seconds_);
  const std::int64_t base =
      result.outside_layers +
      ticks_from_seconds(std::max(0.0, layers.seconds + decode_correction(batch)));

  struct Knot {
    std::int64_t context;  // of one request
    std::int64_t ticks;
    bool extrapolated;
    TimeShares shares;
  };
  std::vector<double> contexts{0};
  bool all_roofline = true;
  for (const LayerKind& kind : kinds_) {
    const Attention& attention = kind.attention;
    if (attention.decode) {
      all_roofline = false;
      contexts.insert(contexts.end(), attention.decode->second_axis().begin(),
                      attention.decode->second_axis().end());
    }
    if (attention.window > 0) {
      contexts.push_back(static_cast<double>(attention.window));
    }
  }
  if (all_roofline && contexts.size() == 1) {
    contexts.push_back(1);  // a roofline is one line
  }
  if (roofline_) {
    // The floor of the attention time ends between these contexts.
    for (double context = 64; context < context_window_; context *= 2) {
      contexts.push_back(context);
    }
    // Windows and the selections of indexers are full at these contexts. Beyond them time is one
    // line.
    for (const Tokens window : roofline_->windows()) {
      contexts.push_back(static_cast<double>(window.value));
    }
    const double last = *std::ranges::max_element(contexts);
    contexts.push_back(std::max(context_window_, 2 * last));
    contexts.push_back(2 * contexts.back());
  }
  std::ranges::sort(contexts);
  contexts.erase(std::unique(contexts.begin(), contexts.end()), contexts.end());
  const auto whole = [&](WorkTime attention) {
    attention.add(layers);
    attention.add(rest);
    return attention;
  };
  const double host_seconds =
      iteration_overhead_.seconds() + static_cast<double>(batch) * request_seconds_;
  std::vector<Knot> knots;
  WorkTime time;
  for (const double context : contexts) {
    time = over_layers(
        1, [&](const LayerKind& kind) { return decode_attention(kind, requests, context); });
    const WorkTime all = whole(time);
    knots.push_back({static_cast<std::int64_t>(context), ticks_from_seconds(time.seconds),
                     all.is_extrapolated(), all.shares_of(all.seconds + host_seconds)});
  }
  time.beyond = time.seconds;
  const bool beyond_last = whole(time).is_extrapolated();
  for (std::size_t i = 0; i < knots.size(); ++i) {
    const bool last = i + 1 == knots.size();
    const Knot& knot = knots[i];
    const std::int64_t from = knot.context * batch;
    // Beyond the last knot the attained bandwidth is held, so time is proportional to the context.
    // With windows the last slope continues.
    std::int64_t slope = 0;
    if (!last) {
      slope = (knots[i + 1].ticks - knot.ticks) / ((knots[i + 1].context - knot.context) * batch);
    } else if (roofline_) {
      slope = result.pieces.back().slope;
    } else {
      slope = knot.ticks / std::max<std::int64_t>(1, from);
    }
    const bool next = last ? beyond_last : knots[i + 1].extrapolated;
    result.pieces.push_back({.from = Tokens(from),
                             .base = base + knot.ticks - detail::time_product(slope, from),
                             .slope = slope,
                             .extrapolated = knot.extrapolated || (next && !all_roofline),
                             .shares = knot.shares});
  }
  return result;
}

const ProfileTiming::DecodeBatch& ProfileTiming::decode_batch(std::int64_t batch) const {
  KVTIER_ASSERT(batch >= 1 && batch <= static_cast<std::int64_t>(decode_.size()),
                "the batch is one the timing model was made for");
  return decode_[static_cast<std::size_t>(batch - 1)];
}

const std::vector<DecodePiece>& ProfileTiming::decode(std::int64_t batch) const {
  return decode_batch(batch).pieces;
}

SimDuration ProfileTiming::decode_layer(std::int64_t batch, Tokens context) const {
  const DecodeBatch& entry = decode_batch(batch);
  const std::int64_t ticks =
      (piece_at(entry.pieces, context).at(context) - entry.outside_layers) / layers_;
  return SimDuration((ticks + kTicksPerNs / 2) / kTicksPerNs);
}

bool has_measured_layers(const ModelConfig& model, const HardwareConfig& hardware) {
  return !model.total_parameters && !model.kv_bytes_per_token && hardware.parallel.pipeline == 1;
}

void check_profile_timing(const ModelConfig& model, const HardwareConfig& hardware,
                          Problems& problems) {
  if (!hardware.profile || hardware.unmeasured == Unmeasured::roofline) {
    return;
  }
  if (!has_measured_layers(model, hardware)) {
    problems.add("/hardware/profile",
                 fmt::format("profile {} has no operations of {}, {}: set /hardware/unmeasured to "
                             "\"roofline\" to take all times from the analytic model",
                             hardware.profile->name, model.name,
                             hardware.parallel.pipeline == 1 ? "whose sizes are given by hand"
                                                             : "in several pipeline stages"));
    return;
  }
  KVTIER_ASSERT(hardware.profile->loaded, "the profile has been read");
  const Profile& profile = *hardware.profile->loaded;
  const auto report = [&](OperationId operation, const std::string& what) {
    problems.add("/hardware/profile",
                 fmt::format("profile {} has no {} of {}, needed for {} on {} GPUs; it has {}: "
                             "measure with --model {}, or set /hardware/unmeasured to \"roofline\"",
                             profile.name, to_string(operation), what, model.name, hardware.gpus,
                             known_shapes(profile, operation), model.name));
  };
  std::vector<std::string_view> reported;
  const auto check_matrix = [&](const MatrixShape& matrix) {
    const DataType type = type_of_matrix(model, matrix.name);
    if (table_of_matrix(profile, model, matrix) ||
        std::ranges::find(reported, matrix.name) != reported.end()) {
      return;
    }
    reported.push_back(matrix.name);
    const bool is_plain = type == plain_type(model.bytes_per_element);
    report(OperationId::gemm,
           fmt::format("{} ({})",
                       is_plain ? matrix_text(matrix.n, matrix.k, model.bytes_per_element)
                                : fmt::format("{} x {} in {}", matrix.n, matrix.k, to_string(type)),
                       matrix.name));
  };
  const std::int64_t rank = gpus_of_rank(hardware);
  const std::int64_t stage = gpus_of_stage(hardware);
  const AttentionShape shape = measured_attention(model, rank);
  for (const LayerGroup& group : layer_groups(model)) {
    const bool is_latent = has_latent_attention(model, group);
    const bool has_module =
        is_latent && table_of_latent_attention(profile, OperationId::mla_prefill, model, rank) &&
        table_of_latent_attention(profile, OperationId::mla_decode, model, rank);
    for (const MatrixShape& matrix : layer_matrices(model, group, rank, stage)) {
      if (!(has_module && is_matrix_of_attention(matrix.name))) {
        check_matrix(matrix);
      }
    }
    if (has_plain_attention(model, group)) {
      for (const OperationId operation :
           {OperationId::prefill_attention, OperationId::decode_attention}) {
        const std::int64_t window = window_of(model, group);
        if (!table_of_attention(profile, operation, shape, window, KeyPositions::embedded)) {
          report(operation, attention_text(shape_of(shape)) +
                                (window > 0 ? fmt::format(", a window of {}", window) : ""));
        }
      }
    } else if (group.attention == AttentionKind::state
                   ? !table_of_state(profile, OperationId::state_prefill, model, rank) ||
                         !table_of_state(profile, OperationId::state_decode, model, rank)
                   : !has_module) {
      const char* what = is_latent                                 ? "mla_prefill and mla_decode"
                         : group.attention == AttentionKind::state ? "attention of state layers"
                                                                   : "sparse attention";
      problems.add("/hardware/profile",
                   fmt::format("profile {} has no {}, needed for {}: set /hardware/unmeasured to "
                               "\"roofline\"",
                               profile.name, what, model.name));
    }
    if (group.has_experts && !table_of_experts(profile, model, stage, hardware.parallel.expert)) {
      problems.add("/hardware/profile",
                   fmt::format("profile {} has no moe of {} experts, {} of them active, {} wide, "
                               "needed for {}: set /hardware/unmeasured to \"roofline\"",
                               profile.name, model.experts->routed, model.experts->active,
                               model.experts->intermediate_size, model.name));
    }
  }
  check_matrix(head_matrix(model, rank));
}

std::unique_ptr<TimingModel> make_timing(const ModelConfig& model, const HardwareConfig& hardware,
                                         KeyPositions positions, std::int64_t max_batch,
                                         const std::optional<EngineConfig>& engine) {
  if (hardware.profile && has_measured_layers(model, hardware)) {
    return std::make_unique<ProfileTiming>(model, hardware, positions, max_batch, engine);
  }
  return std::make_unique<RooflineTiming>(model, hardware, max_batch, engine);
}

}  // namespace kvtier
