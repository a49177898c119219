#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "hw/model/model.hpp"
#include "hw/profile/profile.hpp"
#include "hw/profile/profile_grid.hpp"
#include "hw/profile/profile_shapes.hpp"
#include "hw/timing/operation_time.hpp"
#include "sim/core/key_positions.hpp"

/// The tables of a profile that a model needs.
namespace kvtier {

/// The sizes of a table that all its cells share, by name.
using Shape = std::map<std::string, std::int64_t>;
[[nodiscard]] Shape shape_of(const AttentionShape& shape);

/// A table with cells of one shape, in one variant or in any. If several match, the first one
/// measured with cold caches is taken.
[[nodiscard]] const ProfileTable* find_table(const Profile& profile, OperationId operation,
                                             const Shape& shape,
                                             std::optional<std::string_view> variant = {});

/// The variant of attention that rotates every key by its position. Other variants take keys as
/// stored.
inline constexpr const char* kRotatedVariant = "rotated";

/// The variant of latent attention with its projections, at DeepSeek-V3's widths.
inline constexpr const char* kModuleVariant = "module";
/// The variant of tables with the model's widths; null if none was published.
[[nodiscard]] const char* latent_variant(const ModelConfig& model);

/// The measured table of a matrix, or of attention with keys stored as `positions` says. If several
/// match, the first one measured with cold caches is taken.
[[nodiscard]] const ProfileTable* find_matrix_table(const Profile& profile,
                                                    const MatrixShape& matrix,
                                                    std::int64_t element_bytes);
[[nodiscard]] const ProfileTable* find_attention_table(const Profile& profile,
                                                       OperationId operation,
                                                       const AttentionShape& shape,
                                                       KeyPositions positions);

/// The same, or tables interpolated from those of other shapes (profile_shapes.hpp). Nullopt if the
/// roofline has to stand in.
[[nodiscard]] std::optional<ShapedTable> table_of_matrix(const Profile& profile,
                                                         const MatrixShape& matrix, DataType type);
/// The format of a matrix of the model, by its name (layer_matrices); none:
/// /model/bytes_per_element.
[[nodiscard]] std::optional<NumberFormat> format_of_matrix(const ModelConfig& model,
                                                           std::string_view matrix);
[[nodiscard]] bool is_matrix_of_attention(std::string_view matrix);
[[nodiscard]] DataType type_of_matrix(const ModelConfig& model, std::string_view matrix);
/// The table of a model's matrix. Weights in fp8 of models with experts have block scales: they
/// take a table of fp8_block, otherwise of fp8.
[[nodiscard]] std::optional<ShapedTable> table_of_matrix(const Profile& profile,
                                                         const ModelConfig& model,
                                                         const MatrixShape& matrix);
/// The sizes of attention on one of `gpus` GPUs, with the KV's format.
[[nodiscard]] AttentionShape measured_attention(const ModelConfig& model, std::int64_t gpus);
/// Attention that sees `window` tokens; 0: all. A prefill's table without past tokens has them by
/// the law. KV in a format without a table takes that of bf16, marked as extrapolated.
[[nodiscard]] std::optional<ShapedTable> table_of_attention(const Profile& profile,
                                                            OperationId operation,
                                                            const AttentionShape& shape,
                                                            std::int64_t window,
                                                            KeyPositions positions);
/// Latent attention with its projections (mla_prefill, mla_decode) on one of `gpus` GPUs. Without a
/// table of the model's format, that of bf16, marked as extrapolated.
[[nodiscard]] std::optional<ShapedTable> table_of_latent_attention(const Profile& profile,
                                                                   OperationId operation,
                                                                   const ModelConfig& model,
                                                                   std::int64_t gpus);
/// The routed experts of one layer on one of `gpus` GPUs in `groups` groups, each of which holds
/// whole experts. fp8 experts have block scales: they take a table of fp8_block, otherwise of fp8.
[[nodiscard]] std::optional<ShapedTable> table_of_experts(const Profile& profile,
                                                          const ModelConfig& model,
                                                          std::int64_t gpus, std::int64_t groups);

/// The gated delta rule of a state layer (state_prefill, state_decode) on one of `gpus` GPUs.
[[nodiscard]] std::optional<ShapedTable> table_of_state(const Profile& profile,
                                                        OperationId operation,
                                                        const ModelConfig& model,
                                                        std::int64_t gpus);

/// The shape of the table of whole steps (model_step) of a model, and the model of such a shape.
[[nodiscard]] Shape step_shape(const ModelConfig& model, std::int64_t element_bytes);
[[nodiscard]] ModelConfig model_of_steps(const ProfileTable& table);
/// The tokens that all requests of a decode cell of model_step read: past tokens, and the new token
/// of each request.
[[nodiscard]] Tokens decode_context(const ProfileCell& cell);

/// The work of a call of a table's operation, by its sizes along the table's axes. For gemm_grid:
/// that of gemm at one n and k.
using WorkOf = std::function<Work(double, double)>;
[[nodiscard]] WorkOf work_of(const ProfileTable& table);
/// The same of a cell.
[[nodiscard]] Work work_at(const WorkOf& work, const ProfileCell& cell);

/// The time of a table's operation at any size; the limit is that of the profile's device. For
/// gemm, prefill_attention, decode_attention, elementwise, rotation, copy_h2d, copy_d2h,
/// copy_duplex, and, without a limit of the device, moe, mla_prefill, mla_decode, quantize,
/// state_prefill and state_decode.
[[nodiscard]] ProfileGrid make_grid(const Profile& profile, const ProfileTable& table);
/// The same from some of the table's cells.
[[nodiscard]] ProfileGrid make_grid(const Profile& profile, const ProfileTable& table,
                                    std::span<const ProfileCell> cells);

}  // namespace kvtier
