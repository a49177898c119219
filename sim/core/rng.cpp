#include "sim/core/rng.hpp"

#include <cmath>

#include <boost/random/uniform_int_distribution.hpp>

#include "sim/core/assert.hpp"

namespace kvtier {
namespace {

/// SplitMix64's output function (Steele et al., OOPSLA 2014): spreads neighbouring seeds apart.
std::uint64_t mix(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

}  // namespace

std::uint64_t stream_seed(std::uint64_t master_seed, std::string_view name) {
  std::uint64_t hash = 0xcbf29ce484222325ULL;  // FNV-1a
  for (const char c : name) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  }
  return mix(mix(master_seed) ^ hash);
}

double RandomStream::lognormal(double mu, double sigma) { return std::exp(mu + sigma * normal()); }

std::int64_t RandomStream::index(std::int64_t bound) {
  KVTIER_ASSERT(bound > 0, "an index needs something to choose from");
  return boost::random::uniform_int_distribution<std::int64_t>(0, bound - 1)(engine_);
}

}  // namespace kvtier
