#pragma once

#include "hw/model/model.hpp"

namespace kvtier::test {

/// A layer's matrices, n x k: qkv 8 x 4, attention_output 4 x 4, mlp_up 8 x 4, mlp_down 4 x 8; the
/// head 10 x 4. 4 x (2 x 4 + 2 x 2 + 2 x 8) = 112 weights a layer, so 224 B and 224 FLOP per token;
/// attention 4 x 4 = 16 FLOP per pair; KV 2 x 1 x 2 x 2 B = 8 B per token and layer. Head: 40
/// weights, 80 B and 80 FLOP per row.
inline ModelConfig tiny_model() {
  ModelConfig model;
  model.name = "tiny";
  model.source = "made up";
  model.layers = 2;
  model.hidden_size = 4;
  model.attention_heads = 2;
  model.kv_heads = 1;
  model.head_dim = 2;
  model.intermediate_size = 8;
  model.vocabulary_size = 10;
  model.tied_embeddings = true;
  model.context_window = Tokens(1024);
  return model;
}

}  // namespace kvtier::test
