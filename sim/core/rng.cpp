#include "sim/core/rng.hpp"

#include <cmath>

#include <boost/random/uniform_int_distribution.hpp>

#include "sim/core/assert.hpp"

namespace kvtier {
std::uint64_t stream_seed(std::uint64_t master_seed, std::string_view name) {
  std::uint64_t hash = 0xcbf29ce484222325ULL;  // FNV-1a
  for (const char c : name) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  }
  // Spreads neighbouring seeds apart.
  return random_bits_at(random_bits_at(master_seed, 0) ^ hash, 0);
}

double RandomStream::lognormal(double mu, double sigma) { return std::exp(mu + sigma * normal()); }

std::int64_t RandomStream::index(std::int64_t bound) {
  KVTIER_ASSERT(bound > 0, "an index needs something to choose from");
  return boost::random::uniform_int_distribution<std::int64_t>(0, bound - 1)(engine_);
}

}  // namespace kvtier
