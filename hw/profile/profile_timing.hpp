#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "hw/model/hardware.hpp"
#include "hw/model/model.hpp"
#include "hw/profile/factor_grid.hpp"
#include "hw/profile/profile.hpp"
#include "hw/profile/profile_grid.hpp"
#include "hw/profile/profile_shapes.hpp"
#include "hw/timing/operation_time.hpp"
#include "hw/timing/timing_model.hpp"
#include "sim/core/key_positions.hpp"

namespace kvtier {

/// The variant of attention that turns every key by its position on the way; others take keys as
/// they are stored.
inline constexpr const char* kRotatedVariant = "rotated";

/// The tables of a profile that a model on `gpus` GPUs needs: the matrices of a layer and the head
/// (gemm), attention of a prefill (prefill_attention) and of decode (decode_attention), with keys
/// as `positions` has them. Of several tables of one shape the first that was measured with cold
/// caches counts.
[[nodiscard]] const ProfileTable* find_matrix_table(const Profile& profile,
                                                    const MatrixShape& matrix,
                                                    std::int64_t element_bytes);
[[nodiscard]] const ProfileTable* find_attention_table(const Profile& profile,
                                                       OperationId operation,
                                                       const AttentionShape& shape,
                                                       KeyPositions positions);

/// The same, or tables interpolated from those of other shapes (profile_shapes.hpp). None where the
/// roofline has to stand in.
[[nodiscard]] std::optional<ShapedTable> table_of_matrix(const Profile& profile,
                                                         const MatrixShape& matrix, DataType type);
/// The format of a matrix of the model, by its name, and the sizes of attention with the KV's.
[[nodiscard]] DataType type_of_matrix(const ModelConfig& model, std::string_view matrix);
[[nodiscard]] AttentionShape measured_attention(const ModelConfig& model, std::int64_t gpus);
/// A prefill's table without past tokens has them by the law.
[[nodiscard]] std::optional<ShapedTable> table_of_attention(const Profile& profile,
                                                            OperationId operation,
                                                            const AttentionShape& shape,
                                                            KeyPositions positions);

/// The shape of the table of whole steps (model_step) of a model, and the model of such a shape.
[[nodiscard]] std::map<std::string, std::int64_t> step_shape(const ModelConfig& model,
                                                             std::int64_t element_bytes);
[[nodiscard]] ModelConfig model_of_steps(const ProfileTable& table);
/// The tokens that all requests of a decoding cell of model_step read: the past ones and the new
/// one of each.
[[nodiscard]] Tokens decode_context(const ProfileCell& cell);

/// The time of a table's operation at any size; the limit is that of the profile's device. For
/// gemm, prefill_attention, decode_attention, elementwise, rotation, copy_h2d, copy_d2h,
/// copy_duplex, and, without a limit of the device, moe, mla_prefill, mla_decode and quantize.
[[nodiscard]] ProfileGrid make_grid(const Profile& profile, const ProfileTable& table);
/// The same from some of the table's cells.
[[nodiscard]] ProfileGrid make_grid(const Profile& profile, const ProfileTable& table,
                                    std::span<const ProfileCell> cells);

/// Times from a measured profile (kvtier.profile/2). One layer takes
///
///     the sum over its matrices of gemm(tokens), plus
///     the sum over requests of prefill_attention(new, past), or decode_attention(batch, context)
///     in decode, plus 2 norms, 2 residuals, 1 activation, 1 writing of KV (elementwise) and 1
///     rotation of new tokens (rotation), which attention does itself where keys are stored without
///     positions and the profile has attention that rotates them, plus the all-reduces of the
///     roofline, for more than one GPU;
///
/// outside of the layers are the head (gemm), the embedding and sampling (elementwise), the
/// hardware's iteration overhead and, on one GPU and where the roofline stands in for nothing, what
/// whole steps of the model took beyond their operations, in the median (model_step). A prefill
/// after a pause takes longer, as caches are cold (step), than right after such a pass
/// (prefill_second; without that, as in a run) and than in a run (prefill_run; without that, as
/// long). Decode goes on and finds in caches what its operations were measured without: an
/// iteration takes less than they, or more (decode_run, in the median of each batch), but no less
/// than its attention; right after a prefill that came after a pause, as much longer as a prefill
/// there. An iteration with prompts counts as a prefill. E and R that were not measured are left
/// out and named. A batch is composed of its requests: decode_attention is measured over requests
/// of equal contexts and taken at the sum of the contexts, which is its work.
///
/// Matrices and heads that were not measured are interpolated between those that were
/// (profile_shapes.hpp). Attention of prompts and decodes in one iteration takes the sum of both
/// alone times the factor that mixed_attention measured.
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
                std::int64_t max_batch);

  /// The matrices work on all tokens together; attention is that of each part and of the batch.
  /// `total` is exactly layers x `layer` plus what is outside of them.
  [[nodiscard]] PrefillTime iteration(std::span<const PrefillPart> parts, std::int64_t batch,
                                      Tokens context) const override;

  /// Pieces from one measured context to the next. 1 <= batch <= max_batch.
  [[nodiscard]] const std::vector<DecodePiece>& decode(std::int64_t batch) const override;

  [[nodiscard]] SimDuration decode_as_second() const override {
    return prefill_less_in_run_ - prefill_less_second_;
  }

  [[nodiscard]] SimDuration decode_layer(std::int64_t batch, Tokens context) const override;

  /// Operations of the model that take no time here, as the profile has no table of them.
  [[nodiscard]] const std::vector<std::string>& left_out() const { return left_out_; }
  /// Operations that the roofline stands in for.
  [[nodiscard]] const std::vector<std::string>& from_roofline() const { return from_roofline_; }

 private:
  /// One operation on the tokens (or rows) of a batch, done `count` times.
  struct TokenWork {
    double count;
    ProfileGrid::Limit roofline;  // in place of the grid
    std::optional<ProfileGrid> grid;
    /// The shape is beyond those that were measured.
    bool extrapolated = false;

    [[nodiscard]] ProfileGrid::Time at(double tokens) const;
  };
  struct DecodeBatch {
    std::vector<DecodePiece> pieces;
    std::int64_t outside_layers = 0;  // ticks
  };

  [[nodiscard]] const DecodeBatch& decode_batch(std::int64_t batch) const;
  [[nodiscard]] DecodeBatch make_decode(std::int64_t batch) const;
  /// One layer without attention.
  [[nodiscard]] ProfileGrid::Time dense(double tokens) const;
  /// What is not part of a layer, without the overhead.
  [[nodiscard]] ProfileGrid::Time outside(double tokens, double rows) const;
  [[nodiscard]] ProfileGrid::Time extend_attention(double added, double past) const;
  [[nodiscard]] ProfileGrid::Time decode_attention(double batch, double context) const;

  [[nodiscard]] static std::optional<ProfileGrid> all_reduce_grid(const Profile& profile,
                                                                  std::int64_t gpus);
  [[nodiscard]] std::optional<FactorGrid> mixed_factors(const Profile& profile) const;

  /// By what whole prefills and iterations took beyond their operations, in the median.
  void measure_overheads(const Profile& profile, const ModelConfig& model);
  /// Between batches that were measured in proportion, beyond them that of the nearest.
  [[nodiscard]] double decode_correction(std::int64_t batch) const;

  std::int64_t layers_;
  SimDuration iteration_overhead_;
  SimDuration prefill_overhead_;
  SimDuration prefill_less_second_;
  SimDuration prefill_less_in_run_;
  /// By the batches that were measured: seconds, negative where caches help.
  std::map<std::int64_t, double> decode_corrections_;
  Rates attained_;
  AttentionShape attention_;
  AllReduceTime all_reduces_;
  /// Bytes of one token between GPUs.
  double hidden_bytes_;
  /// One all-reduce by its bytes, in place of `all_reduces_`.
  std::optional<ProfileGrid> all_reduce_;
  std::vector<TokenWork> layer_work_;
  std::vector<TokenWork> token_work_;  // outside of the layers, on all tokens
  std::vector<TokenWork> row_work_;    // outside of the layers, on the rows of logits
  std::optional<ProfileGrid> extend_;
  std::optional<ProfileGrid> decode_attention_;
  bool attention_extrapolated_ = false;
  bool past_by_law_ = false;
  /// Attention of prompts and decodes in one iteration over the sum of both alone.
  std::optional<FactorGrid> mixed_;
  std::vector<std::string> left_out_;
  std::vector<std::string> from_roofline_;
  std::vector<DecodeBatch> decode_;
};

/// Whether ProfileTiming can time the model: dense layers, of weights and KV in any format, on GPUs
/// that are tensor parallel alone.
/// The roofline times others, with or without a profile.
[[nodiscard]] bool has_measured_layers(const ModelConfig& model, const HardwareConfig& hardware);

/// Reports the operations that the model needs and the hardware's profile lacks, at
/// /hardware/profile. Nothing without a profile.
void check_profile_timing(const ModelConfig& model, const HardwareConfig& hardware,
                          Problems& problems);

/// The profile that the hardware names, or else the roofline; also for a model that
/// has_measured_layers refuses.
[[nodiscard]] std::unique_ptr<TimingModel> make_timing(const ModelConfig& model,
                                                       const HardwareConfig& hardware,
                                                       KeyPositions positions,
                                                       std::int64_t max_batch);

}  // namespace kvtier
