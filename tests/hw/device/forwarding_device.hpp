#pragma once

#include <map>
#include <memory>
#include <span>
#include <utility>

#include "hw/device/device.hpp"

namespace kvtier::test {

/// Forwards all calls to another device. Subclasses change some of them.
class ForwardingDevice : public Device {
 public:
  explicit ForwardingDevice(Device& host) : host_(host) {}

  [[nodiscard]] const DeviceInfo& info() const override { return host_.info(); }
  [[nodiscard]] Bytes free_memory(MemoryKind kind) const override {
    return host_.free_memory(kind);
  }
  [[nodiscard]] std::unique_ptr<Stream> make_stream(StreamKind kind = StreamKind::usual) override {
    return host_.make_stream(kind);
  }
  [[nodiscard]] std::unique_ptr<Event> make_event() override { return host_.make_event(); }
  void record(Event& event, Stream& stream) override { host_.record(event, stream); }
  void wait(Stream& stream, Event& event) override { host_.wait(stream, event); }
  [[nodiscard]] double seconds_between(const Event& first, const Event& last) const override {
    return host_.seconds_between(first, last);
  }
  void copy(void* to, const void* from, Bytes bytes, Stream& stream) override {
    host_.copy(to, from, bytes, stream);
  }
  void copy_pieces(std::span<const CopyPiece> pieces, Stream& stream) override {
    host_.copy_pieces(pieces, stream);
  }
  void upload(void* to, const void* from, Bytes bytes, Stream& stream) override {
    host_.upload(to, from, bytes, stream);
  }
  void gather(const RowWork& work, Stream& stream) override { host_.gather(work, stream); }
  void scatter(const RowWork& work, Stream& stream) override { host_.scatter(work, stream); }
  void fold(const RowWork& work, Stream& stream) override { host_.fold(work, stream); }
  void gemm(const GemmWork& work, Stream& stream) override { host_.gemm(work, stream); }
  [[nodiscard]] std::int64_t gemm_rows(std::int64_t m) const override { return host_.gemm_rows(m); }
  [[nodiscard]] std::unique_ptr<Graph> capture(Stream& stream,
                                               const std::function<void()>& queue) override {
    return host_.capture(stream, queue);
  }
  void launch(Graph& graph, Stream& stream) override { host_.launch(graph, stream); }
  [[nodiscard]] bool has_attention(AttentionLibrary library,
                                   const kernels::PagedAttentionShape& shape) const override {
    return host_.has_attention(library, shape);
  }
  void plan_attention(std::unique_ptr<AttentionPlan>& plan, AttentionLibrary library,
                      const kernels::PagedAttentionShape& shape,
                      std::span<const std::int64_t> context_begin,
                      std::span<const std::int64_t> query_begin, Stream& stream) override {
    host_.plan_attention(plan, library, shape, context_begin, query_begin, stream);
  }
  void attention(const AttentionWork& work, Stream& stream) override {
    host_.attention(work, stream);
  }
  void rope(const RopeWork& work, Stream& stream) override { host_.rope(work, stream); }
  void row_function(const RowFunctionWork& work, Stream& stream) override {
    host_.row_function(work, stream);
  }
  void busy(double seconds, Stream& stream) override { host_.busy(seconds, stream); }
  void fill_uniform(void* to, std::int64_t count, float bound, std::uint64_t seed,
                    Stream& stream) override {
    host_.fill_uniform(to, count, bound, seed, stream);
  }
  void write_elements(void* to, std::span<const float> values) override {
    host_.write_elements(to, values);
  }
  void read_elements(std::span<float> values, const void* from) override {
    host_.read_elements(values, from);
  }

  /// Allocations that have not been released.
  [[nodiscard]] std::size_t allocations() const { return buffers_.size(); }

 protected:
  /// May throw to refuse.
  virtual void before_allocation(MemoryKind, Bytes) {}

 private:
  [[nodiscard]] std::byte* allocate(MemoryKind kind, Bytes size) override {
    before_allocation(kind, size);
    Buffer buffer(host_, kind, size);
    std::byte* const data = buffer.data();
    buffers_.emplace(data, std::move(buffer));
    return data;
  }
  void release(MemoryKind, std::byte* data, Bytes) noexcept override { buffers_.erase(data); }

  Device& host_;
  std::map<std::byte*, Buffer> buffers_;
};

}  // namespace kvtier::test
