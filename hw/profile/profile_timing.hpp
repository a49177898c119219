#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "hw/model/hardware.hpp"
#include "hw/model/model.hpp"
#include "hw/profile/factor_grid.hpp"
#include "hw/profile/profile_grid.hpp"
#include "hw/profile/profile_tables.hpp"
#include "hw/timing/engine.hpp"
#include "hw/timing/operation_time.hpp"
#include "hw/timing/timing_model.hpp"
#include "sim/core/key_positions.hpp"

namespace kvtier {

class RooflineTiming;

/// Times from a measured profile (kvtier.profile/3). One layer takes the sum of
///
///     its matrices: gemm(tokens)
///     attention: the sum over requests of prefill_attention(new, past), or in decode
///         decode_attention(batch, context)
///     2 norms, 2 residuals, 1 activation and 1 write of KV (elementwise)
///     1 rotation of new tokens (rotation), unless keys are stored without positions and the
///         profile has attention that rotates them
///     all-reduces, on more than one GPU
///     routed experts (moe) and their router
///
/// and layers of several kinds take the mean. Outside of the layers are the head (gemm), embedding
/// and sampling (elementwise), and the hardware's iteration overhead. A batch is composed of its
/// requests: decode_attention is measured over requests of equal contexts and taken at the sum of
/// the contexts, which determines its work. Elementwise and rotation operations that were not
/// measured are left out and named.
///
/// Whole steps (model_step) correct these sums on one GPU if the roofline stands in for nothing.
/// Each correction is the median of the measured steps minus their operations:
///
///     cold: the first prefill after idle time, at least the sum, because caches are cold
///     second: the second prefill; default: as `warm`
///     warm: back-to-back prefills; default: as long as `cold`
///     decode_warm: back-to-back decode iterations after a prefill, by batch. They can be faster
///         than the sum, because operations are timed with cold caches, but never than their
///         attention
///
/// The first three are the warm-up (WarmUp). A decode iteration as the first or second pass takes
/// longer than a warm one by the difference that was measured for prefills. An iteration with
/// prompts counts as a prefill. The idle gap is the shortest measured idle time (idle_pass) from
/// which on a pass takes more than half of the additional time that it takes after the longest one.
///
/// The requests of a stage are dealt to its ranks (attention_dp) in turn. The rank with the most
/// tokens and the rank with the longest attention set the pace. The tokens of all ranks share one
/// all-reduce for MLPs and experts. Latent attention is measured with its projections (mla_prefill,
/// mla_decode); the roofline adds pairs with past tokens, and those of prompts beyond the table.
///
/// An engine replaces the iteration overhead with its host times, and adds factors for experts and
/// for iterations with prompts (engine.hpp).
///
/// Matrices and heads that were not measured are interpolated between those that were
/// (profile_shapes.hpp). Attention of prompts and decodes in one iteration takes the sum of the two
/// alone, times the factor measured by mixed_attention.
///
/// A prefill or iteration counts as extrapolated if operations beyond their measured sizes take
/// more than a twentieth of the time of all operations.
///
/// The roofline with the hardware's efficiencies stands in for matrices, attention and work on
/// elements that the profile lacks, if the hardware says so (`"unmeasured": "roofline"`). Each
/// such operation is named.
///
/// Immutable once built, so threads may share one.
class ProfileTiming final : public TimingModel {
 public:
  /// `hardware` names a loaded profile, and check_profile_timing found no problem.
  ProfileTiming(const ModelConfig& model, const HardwareConfig& hardware, KeyPositions positions,
                std::int64_t max_batch, const std::optional<EngineConfig>& engine = {});
  ~ProfileTiming() override;

  /// The matrices work on all tokens together; attention is that of each part and of the batch.
  /// `total` is exactly layers x `layer` plus the work outside of layers.
  [[nodiscard]] PrefillTime iteration(std::span<const PrefillPart> parts, std::int64_t batch,
                                      Tokens context) const override;

  /// Pieces from one measured context to the next. 1 <= batch <= max_batch.
  [[nodiscard]] const std::vector<DecodePiece>& decode(std::int64_t batch) const override;

  [[nodiscard]] WarmUp warm_up() const override { return warm_up_; }
  [[nodiscard]] SimDuration idle_gap() const override { return idle_gap_; }

  [[nodiscard]] SimDuration decode_layer(std::int64_t batch, Tokens context) const override;

  /// Operations of the model that take no time here, because the profile has no table of them.
  [[nodiscard]] const std::vector<std::string>& left_out() const { return left_out_; }
  /// Operations that the roofline stands in for.
  [[nodiscard]] const std::vector<std::string>& from_roofline() const { return from_roofline_; }

 private:
  /// Tokens that an operation processes: those of a rank, or of all ranks of the stage.
  struct LayerTokens {
    double rank = 0;
    double all = 0;
  };
  /// A time, and how much of it operations beyond the measured sizes take. Parts of it may come
  /// from the roofline, which knows all sizes, or from the law of attention over cached tokens.
  struct WorkTime {
    double seconds = 0;
    double beyond = 0;
    double roofline = 0;
    double cached_law = 0;

    WorkTime() = default;
    WorkTime(const ProfileGrid::Time& time, bool beyond_shapes);
    [[nodiscard]] static WorkTime of_roofline(double seconds);
    void add(const WorkTime& term, double count = 1);
    void multiply(double factor);
    [[nodiscard]] bool is_extrapolated() const;
    /// Shares of a pass that takes so long with its host times.
    [[nodiscard]] TimeShares shares_of(double pass_seconds) const;
  };
  /// One operation on the tokens (or rows) of a batch, done `count` times.
  struct TokenWork {
    double count;
    ProfileGrid::Limit roofline;  // in place of the grid
    /// Work on elements. Its times count with those of tables: the errors of tables, which are
    /// found in whole runs, include it.
    bool is_minor = false;
    std::optional<ProfileGrid> grid;
    /// The shape is beyond the measured ones.
    bool extrapolated = false;
    bool of_stage = false;

    [[nodiscard]] WorkTime at(double tokens) const;
  };
  /// Attention of one kind of layer on one GPU; without a grid the roofline has its times.
  struct Attention {
    AttentionShape shape;
    /// Tokens that attention reads; 0: all.
    std::int64_t window = 0;
    /// Times come from roofline_, because `shape` does not describe this attention.
    bool of_rank = false;
    bool is_state = false;
    /// The least time of the roofline.
    double shortest = 0;
    std::optional<ProfileGrid> extend;
    std::optional<ProfileGrid> decode;
    bool extrapolated = false;
    bool past_by_law = false;
    /// Time of attention of prompts and decodes in one iteration, relative to the sum of the two
    /// alone.
    std::optional<FactorGrid> mixed;
  };
  struct LayerKind {
    double count = 0;
    std::vector<TokenWork> work;
    Attention attention;
  };
  struct DecodeBatch {
    std::vector<DecodePiece> pieces;
    std::int64_t outside_layers = 0;  // ticks
  };
  class Builder;

  [[nodiscard]] const DecodeBatch& decode_batch(std::int64_t batch) const;
  [[nodiscard]] DecodeBatch make_decode(std::int64_t batch) const;
  /// One layer without attention.
  [[nodiscard]] WorkTime dense(const LayerKind& kind, const LayerTokens& tokens) const;
  /// All-reduces of one layer.
  [[nodiscard]] WorkTime all_reduces(const LayerTokens& tokens) const;
  /// Time of work outside of layers, without the overhead.
  [[nodiscard]] WorkTime outside(double tokens, double rows) const;
  [[nodiscard]] WorkTime extend_attention(const LayerKind& kind, double added, double past) const;
  [[nodiscard]] WorkTime decode_attention(const LayerKind& kind, double batch,
                                          double context) const;
  [[nodiscard]] std::size_t index_of(const LayerKind& kind) const {
    return static_cast<std::size_t>(&kind - kinds_.data());
  }
  /// The sum over layers, divided by `by`.
  template <class TimeOf>
  [[nodiscard]] WorkTime over_layers(double by, TimeOf time_of) const;
  /// One layer's attention of the prompts and running requests of one rank.
  [[nodiscard]] WorkTime attention(const LayerKind& kind, std::span<const PrefillPart> parts,
                                   double batch, double context) const;

  [[nodiscard]] std::optional<FactorGrid> mixed_factors(const Profile& profile,
                                                        const LayerKind& kind) const;

  /// Sets overheads and corrections: the median time of measured whole steps minus their
  /// operations.
  void measure_overheads(const Profile& profile, const ModelConfig& model);
  /// The correction of a batch: linear between measured batches, the nearest one beyond them.
  [[nodiscard]] double decode_correction(std::int64_t batch) const;

  std::int64_t layers_;
  std::int64_t ranks_;
  SimDuration iteration_overhead_;
  double request_seconds_;
  double prompt_factor_;
  WarmUp warm_up_;
  SimDuration idle_gap_ = kUsualIdleGap;
  /// Seconds by measured batch; negative if caches save time.
  std::map<std::int64_t, double> decode_corrections_;
  Rates attained_;
  double context_window_;
  /// One all-reduce of a rank's GPUs, and of a stage's where ranks have work of their own.
  AllReduceTime rank_all_reduce_;
  AllReduceTime stage_all_reduce_;
  /// Bytes of one token between GPUs.
  double hidden_bytes_;
  /// All-reduces by their bytes, in place of the roofline's.
  std::optional<ProfileGrid> rank_all_reduce_grid_;
  std::optional<ProfileGrid> stage_all_reduce_grid_;
  std::vector<LayerKind> kinds_;
  std::vector<TokenWork> token_work_;  // outside of the layers, on all tokens
  std::vector<TokenWork> row_work_;    // outside of the layers, on the rows of logits
  /// Times of attention that no AttentionShape describes.
  std::unique_ptr<RooflineTiming> roofline_;
  std::vector<std::string> left_out_;
  std::vector<std::string> from_roofline_;
  std::vector<DecodeBatch> decode_;
};

/// Whether ProfileTiming can time the model: its parameters follow from its shape, and it has one
/// pipeline stage. The roofline times others, with or without a profile.
[[nodiscard]] bool has_measured_layers(const ModelConfig& model, const HardwareConfig& hardware);

/// Reports the operations that the model needs and the hardware's profile lacks, at
/// /hardware/profile. Reports nothing without a profile.
void check_profile_timing(const ModelConfig& model, const HardwareConfig& hardware,
                          Problems& problems);

/// The timing model of the hardware's profile. Without a profile, or for a model that
/// has_measured_layers refuses, the roofline.
[[nodiscard]] std::unique_ptr<TimingModel> make_timing(
    const ModelConfig& model, const HardwareConfig& hardware, KeyPositions positions,
    std::int64_t max_batch, const std::optional<EngineConfig>& engine = {});

}  // namespace kvtier
