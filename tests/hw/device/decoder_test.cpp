/// The decoder on the host, compared with plain loops in double, and with itself after KV was cut,
/// moved or reused.

#include "hw/device/decoder.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "hw/device/cpu_device.hpp"
#include "kernels/rope_attention.hpp"
#include "sim/core/assert.hpp"
#include "sim/core/errors.hpp"
#include "tests/hw/device/decoder_reference.hpp"
#include "tests/hw/device/device_checks.hpp"

namespace kvtier {
namespace {

using Ids = std::vector<std::int32_t>;

constexpr DecoderShape kShape{.layers = 3,
                              .hidden = 96,
                              .query_heads = 4,
                              .kv_heads = 2,
                              .head_dim = 32,
                              .intermediate = 112,
                              .gated = true,
                              .vocabulary = 131};
constexpr DecoderLimits kLimits{
    .requests = 8, .tokens = 256, .context = 1024, .longest_context = 300};
constexpr std::int64_t kSlots = 512;

/// Activations are near 1, a layer has four sums of up to 128 products after each other and adds to
/// the residual sum; each sum is off by its square root of products x 2^-24 = 7e-7 of it. Three
/// layers and the logits: 13 of them, 9e-6. The next matrices make an error neither larger nor
/// smaller.
constexpr double kTight = 1e-5;

DecoderShape plain() {
  DecoderShape shape = kShape;
  shape.gated = false;
  shape.kv_heads = 4;
  return shape;
}

Ids random_ids(std::int64_t count, unsigned seed) {
  std::mt19937 engine(seed);
  Ids ids(static_cast<std::size_t>(count));
  for (std::int32_t& id : ids) {
    id = static_cast<std::int32_t>(engine() % static_cast<unsigned>(kShape.vocabulary));
  }
  return ids;
}

Ids random_slots(unsigned seed) {
  Ids slots(kSlots);
  std::iota(slots.begin(), slots.end(), 0);
  std::shuffle(slots.begin(), slots.end(), std::mt19937(seed));
  return slots;
}

Ids part(const Ids& ids, std::size_t begin, std::size_t end) {
  return {ids.begin() + static_cast<std::ptrdiff_t>(begin),
          ids.begin() + static_cast<std::ptrdiff_t>(end)};
}

/// A decoder with a pool and a stream.
class Model {
 public:
  explicit Model(KeyPositions positions, const DecoderShape& shape = kShape)
      : decoder(device(), shape, positions, kLimits, 5), pool(device(), shape, kSlots) {}

  static Device& device() {
    static const std::unique_ptr<Device> host = make_cpu_device(2);
    return *host;
  }

  /// Logits of each request that has new tokens, one after another.
  std::vector<float> run(const DecoderBatch& batch) {
    decoder.forward(batch, pool, *stream);
    stream->synchronize();
    return elements_from(
        device(), decoder.logits(),
        static_cast<std::size_t>(decoder.output_rows() * decoder.shape().vocabulary));
  }
  std::vector<float> run(const Ids& tokens, const Ids& context) {
    DecoderBatch batch;
    batch.add(tokens, context);
    return run(batch);
  }
  /// K and V of a slot.
  std::vector<float> row(std::int64_t layer, std::int64_t slot) {
    return elements_from(device(), pool.row(layer, slot),
                         static_cast<std::size_t>(pool.row_bytes() / device().info().element));
  }
  /// Makes every slot hold no numbers.
  void forget() {
    std::fill_n(reinterpret_cast<float*>(pool.layer(0)),
                decoder.shape().layers * pool.layer_bytes() / Bytes(4), NAN);
  }

  Decoder decoder;
  KvPool pool;
  std::unique_ptr<Stream> stream = device().make_stream();
};

template <class A, class B>
double difference(const A& a, const B& b) {
  EXPECT_EQ(a.size(), b.size());
  double largest = 0;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    const double one = std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
    largest = std::isnan(one) ? INFINITY : std::max(largest, one);
  }
  return largest;
}

// 2 x 3 layers x 2 heads x 32 x 4 bytes = 1,536; a layer's row is a third of it.
TEST(KvPool, LaysOutOneRowForEachSlotOfALayer) {
  EXPECT_EQ(kv_bytes_per_token(kShape, Bytes(4)), Bytes(1536));
  EXPECT_EQ(kv_row_bytes(kShape, Bytes(4)), Bytes(512));
  // Llama-2-13B in two bytes: 819,200.
  EXPECT_EQ(kv_bytes_per_token({.layers = 40, .kv_heads = 40, .head_dim = 128}, Bytes(2)),
            Bytes(819200));
  const KvPool pool(Model::device(), kShape, 10);
  EXPECT_EQ(pool.row_bytes(), Bytes(512));
  EXPECT_EQ(pool.layer_bytes(), Bytes(5120));
  EXPECT_EQ(pool.row(0, 7) - pool.layer(0), 7 * 512);
  EXPECT_EQ(pool.row(2, 1) - pool.row(0, 0), 2 * 5120 + 512);
}

class DecoderShapes : public testing::TestWithParam<DecoderShape> {};
INSTANTIATE_TEST_SUITE_P(, DecoderShapes, testing::Values(kShape, plain()),
                         [](const auto& one) { return one.param.gated ? "Gated" : "Plain"; });

TEST_P(DecoderShapes, AgreesWithPlainLoopsInDouble) {
  for (const KeyPositions positions : {KeyPositions::decoupled, KeyPositions::embedded}) {
    Model model(positions, GetParam());
    const ReferenceDecoder reference(model.decoder);
    const Ids ids = random_ids(70, 1);
    ReferenceKv kv;
    EXPECT_LT(difference(model.run(ids, part(random_slots(2), 0, 70)),
                         reference.logits(part(ids, 0, 70), kv)),
              kTight);
    // One more token on the KV that is there, and its choice.
    const Ids next{11};
    const std::vector<double> expected = reference.logits(next, kv);
    EXPECT_LT(difference(model.run(next, part(random_slots(2), 0, 71)), expected), kTight);
    EXPECT_EQ(model.decoder.next_tokens()[0],
              std::ranges::max_element(expected) - expected.begin());
  }
}

// Without layers' work the logits would be those of the last token alone.
TEST_P(DecoderShapes, LogitsDependOnTheWholeContext) {
  Model model(KeyPositions::decoupled, GetParam());
  Ids ids = random_ids(40, 1);
  const Ids slots = part(random_slots(2), 0, 40);
  const std::vector<float> before = model.run(ids, slots);
  ids[3] = ids[3] == 5 ? 6 : 5;
  EXPECT_GT(difference(model.run(ids, slots), before), 1e-3);
}

TEST_P(DecoderShapes, ActivationsStayNearOne) {
  Model model(KeyPositions::decoupled, GetParam());
  const std::vector<float> logits = model.run(random_ids(50, 1), part(random_slots(2), 0, 50));
  const double squares = std::inner_product(logits.begin(), logits.end(), logits.begin(), 0.0) /
                         static_cast<double>(logits.size());
  EXPECT_GT(squares, 0.5);
  EXPECT_LT(squares, 2);
}

TEST(Decoder, PrefillInPartsEqualsPrefillAtOnce) {
  const Ids ids = random_ids(67, 3);
  const Ids slots = part(random_slots(4), 0, 67);
  for (const KeyPositions positions : {KeyPositions::decoupled, KeyPositions::embedded}) {
    Model model(positions);
    const std::vector<float> whole = model.run(ids, slots);
    (void)model.run(part(ids, 0, 30), part(slots, 0, 30));
    EXPECT_LT(difference(model.run(part(ids, 30, 67), slots), whole), kTight) << "two parts";
    std::vector<float> last;
    for (std::size_t i = 0; i < ids.size(); ++i) {
      last = model.run(part(ids, i, i + 1), part(slots, 0, i + 1));
    }
    EXPECT_LT(difference(last, whole), kTight) << "token by token";
  }
}

TEST(Decoder, GivesABatchTheResultsOfItsRequestsAlone) {
  const Ids slots = random_slots(6);
  const std::vector<std::pair<std::size_t, std::size_t>> new_and_past{
      {1, 20}, {17, 0}, {0, 9}, {5, 33}, {1, 0}};
  Model together(KeyPositions::decoupled);
  Model alone(KeyPositions::decoupled);
  DecoderBatch batch;
  std::vector<float> expected;
  std::size_t used = 0;
  unsigned seed = 10;
  for (const auto& [added, past] : new_and_past) {
    const Ids ids = random_ids(static_cast<std::int64_t>(past + added), ++seed);
    const Ids context = part(slots, used, used + past + added);
    used += past + added;
    if (past > 0) {
      (void)together.run(part(ids, 0, past), part(context, 0, past));
      (void)alone.run(part(ids, 0, past), part(context, 0, past));
    }
    batch.add(part(ids, past, past + added), context);
    const std::vector<float> logits = alone.run(part(ids, past, past + added), context);
    expected.insert(expected.end(), logits.begin(), logits.end());
  }
  const std::vector<float> found = together.run(batch);
  EXPECT_EQ(together.decoder.output_rows(), 4) << "one has no new tokens";
  EXPECT_LT(difference(found, expected), kTight);
}

TEST(Decoder, GivesTheSameBitsForAnySlots) {
  const Ids ids = random_ids(67, 3);
  Model model(KeyPositions::decoupled);
  const std::vector<float> first = model.run(ids, part(random_slots(4), 0, 67));
  EXPECT_EQ(model.run(ids, part(random_slots(5), 100, 167)), first);
}

// KV is copied to the host and back to other slots, as a tier does.
TEST(Decoder, GivesTheSameBitsAfterKvWasMoved) {
  const Ids ids = random_ids(60, 3);
  const Ids more = random_ids(9, 4);
  Ids slots = part(random_slots(4), 0, 69);
  Model model(KeyPositions::decoupled);
  (void)model.run(ids, part(slots, 0, 60));
  const std::vector<float> expected = model.run(more, slots);
  std::vector<std::vector<float>> saved;
  for (std::int64_t layer = 0; layer < kShape.layers; ++layer) {
    for (std::size_t t = 0; t < 60; ++t) {
      saved.push_back(model.row(layer, slots[t]));
    }
  }
  model.forget();
  const Ids others = part(random_slots(8), 0, 69);
  for (std::size_t i = 0; i < saved.size(); ++i) {
    model.device().write_elements(model.pool.row(static_cast<std::int64_t>(i / 60), others[i % 60]),
                                  saved[i]);
  }
  EXPECT_EQ(model.run(more, others), expected);
  // The result also equals a computation from the start.
  Ids all = ids;
  all.insert(all.end(), more.begin(), more.end());
  EXPECT_LT(difference(model.run(all, slots), expected), kTight);
}

// The oldest tokens were dropped. A separate request recomputes them in the batch of the new
// prompt.
TEST(Decoder, RecomputesADroppedHeadInTheSameBatch) {
  const Ids ids = random_ids(60, 3);
  const Ids slots = part(random_slots(4), 0, 60);
  Model model(KeyPositions::decoupled);
  (void)model.run(part(ids, 0, 50), part(slots, 0, 50));
  const std::vector<float> expected = model.run(part(ids, 50, 60), slots);
  const std::vector<float> nothing(
      static_cast<std::size_t>(kv_row_bytes(kShape, Bytes(4)).value / 4), NAN);
  for (std::int64_t layer = 0; layer < kShape.layers; ++layer) {
    for (std::size_t t = 0; t < 20; ++t) {
      model.device().write_elements(model.pool.row(layer, slots[t]), nothing);
    }
  }
  DecoderBatch batch;
  batch.add(part(ids, 0, 20), part(slots, 0, 20));
  batch.add(part(ids, 50, 60), slots);
  const std::vector<float> found = model.run(batch);
  EXPECT_LT(
      difference(std::vector<float>(found.begin() + kShape.vocabulary, found.end()), expected),
      kTight);
}

/// After `ids`, the oldest `dropped` tokens are cut and `more` follow.
struct Cut {
  Ids ids = random_ids(120, 21);
  Ids more = random_ids(8, 22);
  Ids slots = part(random_slots(23), 0, 128);
  std::size_t dropped = 64;
  [[nodiscard]] Ids kept() const { return part(slots, dropped, slots.size()); }
};

// AttentionStore, section 3.4.2 (Tables 1 and 2): KV without positions stays valid when its oldest
// tokens go; KV with embedded positions that is used as it is (NKVT) does not.
TEST(Decoder, ACutLeavesDecoupledKvValidAndEmbeddedKvInvalid) {
  const Cut cut;
  // The right answer: the kept rows of K and V, without positions, get the positions from 0 on.
  Model decoupled(KeyPositions::decoupled);
  (void)decoupled.run(cut.ids, part(cut.slots, 0, cut.ids.size()));
  const ReferenceDecoder reference(decoupled.decoder);
  ReferenceKv kept;
  for (std::int64_t layer = 0; layer < kShape.layers; ++layer) {
    for (std::size_t t = cut.dropped; t < cut.ids.size(); ++t) {
      kept.append(layer, decoupled.row(layer, cut.slots[t]));
    }
  }
  const std::vector<double> expected = reference.logits(cut.more, kept);

  const double right = difference(decoupled.run(cut.more, cut.kept()), expected);
  Model embedded(KeyPositions::embedded);
  const std::vector<float> whole = embedded.run(cut.ids, part(cut.slots, 0, cut.ids.size()));
  const double wrong = difference(embedded.run(cut.more, cut.kept()), expected);
  EXPECT_LT(right, kTight);
  EXPECT_GT(wrong, 1e-2);
  EXPECT_GT(wrong, 1e4 * right);
  // Not because the two modes differ: before the cut they are the same model.
  EXPECT_LT(difference(decoupled.run(cut.ids, part(cut.slots, 0, cut.ids.size())), whole), kTight);
}

// With embedded positions, a cut requires that every stored key is rotated back by the number of
// cut tokens. RoPE by p and then by -d is RoPE by p - d; the decoupled pool has the keys to start
// from.
TEST(Decoder, ReEmbeddedKeysAreThoseOfDecoupledPositions) {
  const Cut cut;
  Model decoupled(KeyPositions::decoupled);
  Model embedded(KeyPositions::embedded);
  (void)decoupled.run(cut.ids, part(cut.slots, 0, cut.ids.size()));
  (void)embedded.run(cut.ids, part(cut.slots, 0, cut.ids.size()));
  const Ids kept = part(cut.slots, cut.dropped, cut.ids.size());
  const Buffer slots_on = numbers_on(Model::device(), kept);
  const Bytes key_row = kv_row_bytes(kShape, Bytes(4)) / 2;
  const Buffer staging(Model::device(), MemoryKind::device,
                       static_cast<std::int64_t>(kept.size()) * key_row);
  Stream& stream = *embedded.stream;
  for (std::int64_t layer = 0; layer < kShape.layers; ++layer) {
    const RowWork keys{.from = decoupled.pool.layer(layer),
                       .to = staging.data(),
                       .slots = slots_on.as<std::int32_t>(),
                       .rows = static_cast<std::int64_t>(kept.size()),
                       .row = key_row,
                       .slot_stride = decoupled.pool.row_bytes()};
    Model::device().rope({.rows = keys,
                          .heads = kShape.kv_heads,
                          .head_dim = kShape.head_dim,
                          .base = kShape.rope_base},
                         stream);
    RowWork back = keys;
    back.from = staging.data();
    back.to = embedded.pool.layer(layer);
    Model::device().scatter(back, stream);
    // Values of deeper layers are the same in both, up to rounding.
  }
  stream.synchronize();
  EXPECT_LT(difference(embedded.run(cut.more, cut.kept()), decoupled.run(cut.more, cut.kept())),
            kTight);
}

TEST(Decoder, PassesTheChecksOfEveryDevice) {
  for (const auto& [name, error] : decoder_errors(Model::device())) {
    EXPECT_LE(error, 1) << name;
  }
}

TEST(Decoder, CallsHooksBetweenLayers) {
  Model model(KeyPositions::decoupled);
  DecoderBatch batch;
  batch.add(random_ids(4, 1), part(random_slots(1), 0, 4));
  std::vector<std::int64_t> calls;
  model.decoder.forward(batch, model.pool, *model.stream,
                        {.before_layer = [&](std::int64_t layer) { calls.push_back(layer); },
                         .after_layer = [&](std::int64_t layer) { calls.push_back(10 + layer); }});
  model.stream->synchronize();
  EXPECT_EQ(calls, (std::vector<std::int64_t>{0, 10, 1, 11, 2, 12}));
}

// Layers 1 and 2 start only when another stream has brought their KV, which is missing before.
TEST(Decoder, LayersWaitForTheirLoad) {
  const Ids ids = random_ids(60, 3);
  const Ids slots = part(random_slots(4), 0, 61);
  Model model(KeyPositions::decoupled);
  (void)model.run(ids, part(slots, 0, 60));
  const std::vector<float> expected = model.run({7}, slots);
  Device& device = Model::device();
  Buffer saved(device, MemoryKind::pinned, kShape.layers * model.pool.layer_bytes());
  device.copy(saved.data(), model.pool.layer(0), saved.size(), *model.stream);
  model.stream->synchronize();
  model.forget();
  const auto loader = device.make_stream();
  std::vector<std::unique_ptr<Event>> loaded;
  for (std::int64_t layer = 0; layer < kShape.layers; ++layer) {
    device.busy(0.01, *loader);
    device.copy(model.pool.layer(layer), saved.data() + (layer * model.pool.layer_bytes()).value,
                model.pool.layer_bytes(), *loader);
    loaded.push_back(device.make_event());
    device.record(*loaded.back(), *loader);
  }
  DecoderBatch batch;
  batch.add(Ids{7}, slots);
  model.decoder.forward(batch, model.pool, *model.stream,
                        {.before_layer =
                             [&](std::int64_t layer) {
                               device.wait(*model.stream, *loaded[static_cast<std::size_t>(layer)]);
                             },
                         .after_layer = {}});
  model.stream->synchronize();
  EXPECT_EQ(elements_from(device, model.decoder.logits(), expected.size()), expected);
}

TEST(Decoder, TakesABatchWithoutNewTokens) {
  Model model(KeyPositions::decoupled);
  EXPECT_TRUE(model.run(Ids{}, part(random_slots(1), 0, 4)).empty());
  EXPECT_TRUE(model.run(DecoderBatch{}).empty());
}

TEST(Decoder, RefusesBatchesLargerThanItsLimits) {
  Model model(KeyPositions::decoupled);
  const auto refusal = [&](const DecoderBatch& batch) -> std::string {
    try {
      model.decoder.begin(batch, *model.stream);
      return "taken";
    } catch (const DeviceError& error) {
      return error.what();
    }
  };
  DecoderBatch batch;
  batch.add(Ids(256), Ids(300));
  EXPECT_EQ(refusal(batch), "taken");
  batch.add(Ids(1), Ids(257));
  EXPECT_EQ(refusal(batch),
            "decoder: a batch of 2 requests, 257 new tokens and 557 tokens of context, 300 of them "
            "in one request, does not fit in what was allocated for 8, 256, 1024 and 300");
  DecoderBatch grown;
  grown.add(Ids(1), Ids(301));
  EXPECT_NE(refusal(grown), "taken");
  DecoderBatch longer;
  longer.add(Ids(2), Ids(1));
  EXPECT_THROW(model.decoder.begin(longer, *model.stream), InvariantError);
}

TEST(Decoder, RefusesHeadsThatTheKernelsDoNotTake) {
  DecoderShape shape = kShape;
  shape.query_heads = 3;
  try {
    const Decoder decoder(Model::device(), shape, KeyPositions::decoupled, kLimits, 1);
    FAIL();
  } catch (const DeviceError& error) {
    EXPECT_STREQ(error.what(),
                 "decoder: 3 query heads on 2 KV heads of width 32 are not what the kernels take");
  }
}

TEST(ScoreSparsity, IsTheShareOfSmallScoresInEachLayer) {
  for (const KeyPositions positions : {KeyPositions::decoupled, KeyPositions::embedded}) {
    Model model(positions);
    const ReferenceDecoder reference(model.decoder);
    const Ids ids = random_ids(100, 1);
    DecoderBatch batch;
    batch.add(ids, part(random_slots(2), 0, 100));
    const std::vector<double> found =
        measure_score_sparsity(model.decoder, batch, model.pool, *model.stream);
    ReferenceKv kv;
    std::vector<double> expected;
    (void)reference.logits(ids, kv, &expected);
    ASSERT_EQ(found.size(), 3U);
    // 4 heads x 5,050 scores; rounding may move two of them over the limit.
    EXPECT_LT(difference(found, expected), 2.0 / 20200);
    EXPECT_GT(found[0], 0);
    EXPECT_LT(found[0], 1);
  }
}

TEST(ScoreSparsity, OneTokenHasNoSmallScores) {
  Model model(KeyPositions::decoupled);
  DecoderBatch batch;
  batch.add(Ids{1}, Ids{4});
  EXPECT_EQ(measure_score_sparsity(model.decoder, batch, model.pool, *model.stream),
            (std::vector<double>{0, 0, 0}));
}

}  // namespace
}  // namespace kvtier
