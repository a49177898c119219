#include "sim/python/policies.hpp"

#include <memory>
#include <optional>
#include <stdexcept>
#include <type_traits>
#include <utility>

#include <fmt/format.h>
#include <pybind11/functional.h>
#include <pybind11/stl.h>

#include "sim/core/assert.hpp"
#include "sim/core/errors.hpp"
#include "sim/policy/demand_name.hpp"
#include "sim/policy/routing.hpp"
#include "sim/study/config/plugins.hpp"

namespace kvtier::python {
namespace {

namespace py = pybind11;

/// A Python object that any thread may copy and release, with or without the interpreter's lock.
using SharedObject = std::shared_ptr<py::object>;

SharedObject shared(py::object object) {
  return {new py::object(std::move(object)), [](py::object* held) {
            const py::gil_scoped_acquire acquire;
            delete held;
          }};
}

/// A copy of a RoomRequest. Python may keep it after the call.
struct ShownRequest {
  RoomRequest request;
  std::optional<EntryView> newcomer;
};

/// A view that Python may use during one call. Uses after the call raise `over`.
template <class View>
class Lent {
 public:
  Lent(View& view, const char* over, std::string policy)
      : view_(&view), over_(over), policy_(std::move(policy)) {}
  [[nodiscard]] View& get() const {
    if (view_ == nullptr) {
      throw std::runtime_error(over_);
    }
    return *view_;
  }
  void take_back() { view_ = nullptr; }
  /// The name of the policy that the view is lent to.
  [[nodiscard]] const std::string& policy() const { return policy_; }

 private:
  View* view_;
  const char* over_;
  std::string policy_;
};
using LentVictims = Lent<Victims>;
using LentQueue = Lent<const QueueView>;
using LentPrefetch = Lent<const PrefetchContext>;
using LentRouting = Lent<const RoutingView>;

/// Lends `view` to Python while `with` runs.
template <class View, class F>
auto lend(View& view, const char* over, const F& with, const std::string& policy = "") {
  const auto lent = std::make_shared<Lent<View>>(view, over, policy);
  const auto end = [](Lent<View>* shown) { shown->take_back(); };
  const std::unique_ptr<Lent<View>, decltype(end)> during(lent.get(), end);
  return with(lent);
}

std::optional<std::uint64_t> position_or_none(QueuePosition position) {
  return position == kNotQueued ? std::nullopt : std::optional(position.value);
}

/// The number of an int, or of an object that stands for one, such as an integer of numpy.
std::optional<std::int64_t> number_of(const py::object& object) {
  if (PyIndex_Check(object.ptr()) == 0) {
    return std::nullopt;
  }
  const auto index = py::reinterpret_steal<py::object>(PyNumber_Index(object.ptr()));
  int overflow = 0;
  const std::int64_t value = index ? PyLong_AsLongLongAndOverflow(index.ptr(), &overflow) : -1;
  if (PyErr_Occurred() != nullptr) {
    throw py::error_already_set();
  }
  return overflow == 0 ? std::optional(value) : std::nullopt;
}

/// Looks up methods of a Python object.
class PythonMethods {
 public:
  /// The caller holds the interpreter's lock.
  PythonMethods(const py::object& policy, const py::object& base) : policy_(policy), base_(base) {}

  /// Null for an optional method that the class does not override.
  [[nodiscard]] SharedObject operator()(const char* name, bool optional) const {
    const bool is_own = !py::type::of(policy_).attr(name).is(base_.attr(name));
    return optional && !is_own ? SharedObject() : shared(policy_.attr(name));
  }

 private:
  const py::object& policy_;
  const py::object& base_;
};

template <class F>
void call(const SharedObject& method, const F& with) {
  if (method) {
    const py::gil_scoped_acquire acquire;
    with(*method);
  }
}

/// Turns an AssertionError of check_invariants into an InvariantError.
template <class F>
void check(const std::string& name, const F& with) {
  try {
    with();
  } catch (const py::error_already_set& error) {
    if (!error.matches(PyExc_AssertionError)) {
      throw;
    }
    throw InvariantError(fmt::format("{}.check_invariants: {}", name, error.what()));
  }
}

const char* phase_name(RoutingPhase phase) {
  return phase == RoutingPhase::both      ? "both"
         : phase == RoutingPhase::prefill ? "prefill"
                                          : "decode";
}

const char* medium_name(BlockMedium medium) {
  return medium == BlockMedium::gpu ? "gpu" : medium == BlockMedium::host ? "host" : "disk";
}

std::vector<std::uint64_t> values_of(std::span<const BlockHash> blocks) {
  std::vector<std::uint64_t> values;
  values.reserve(blocks.size());
  for (const BlockHash block : blocks) {
    values.push_back(block.value);
  }
  return values;
}

/// An eviction policy whose decisions a Python object makes.
class PythonEviction final : public EvictionPolicy {
 public:
  /// The interpreter is held.
  PythonEviction(std::string name, const py::object& policy, const py::object& base)
      : name_(std::move(name)) {
    const PythonMethods method(policy, base);
    on_start_ = method("on_start", true);
    on_insert_ = method("on_insert", false);
    on_hit_ = method("on_hit", true);
    on_resize_ = method("on_resize", true);
    on_release_ = method("on_release", true);
    if (!on_release_) {
      on_release_ = on_resize_;
    }
    on_split_ = method("on_split", true);
    on_remove_ = method("on_remove", false);
    on_queue_change_ = method("on_queue_change", true);
    on_next_use_ = method("on_next_use", true);
    choose_ = method("choose", false);
    check_invariants_ = method("check_invariants", true);
  }

  PythonEviction(const PythonEviction&) = delete;
  PythonEviction& operator=(const PythonEviction&) = delete;
  ~PythonEviction() override {
    const py::gil_scoped_acquire acquire;
    *running_ = false;
  }

  void on_start(const TierFacts& facts) override {
    // Python may keep these functions after the run, when they have no answer.
    const auto in_ns = [this](std::function<SimDuration(Tokens)> duration) {
      return [name = name_, running = running_,
              duration = std::move(duration)](std::int64_t tokens) {
        if (!*running) {
          throw std::runtime_error(name + ".on_start: its functions belong to a run that is over");
        }
        return duration(Tokens(tokens)).ns;
      };
    };
    call(on_start_, [&](const py::object& method) {
      method(py::cpp_function(in_ns(facts.recompute)), py::cpp_function(in_ns(facts.load)));
    });
  }
  void on_insert(const EntryView& entry, SimTime now) override {
    call(on_insert_, [&](const py::object& method) { method(entry, now.ns); });
  }
  void on_hit(EntryId entry, SimTime now) override {
    call(on_hit_, [&](const py::object& method) { method(entry.value, now.ns); });
  }
  void on_release(const EntryView& entry, SimTime now) override {
    call(on_release_, [&](const py::object& method) { method(entry, now.ns); });
  }
  void on_resize(const EntryView& entry, SimTime now) override {
    call(on_resize_, [&](const py::object& method) { method(entry, now.ns); });
  }
  void on_split(const EntryView& head, const EntryView& tail, SimTime now) override {
    if (!on_split_) {
      EvictionPolicy::on_split(head, tail, now);
      return;
    }
    call(on_split_, [&](const py::object& method) { method(head, tail, now.ns); });
  }
  void on_remove(EntryId entry, SimTime now) override {
    call(on_remove_, [&](const py::object& method) { method(entry.value, now.ns); });
  }
  void on_queue_change(EntryId entry, const QueueChange& change) override {
    call(on_queue_change_, [&](const py::object& method) {
      method(entry.value, change.position.value, change.waits, position_or_none(change.first));
    });
  }
  void on_next_use(EntryId entry, SimTime at) override {
    call(on_next_use_, [&](const py::object& method) {
      method(entry.value, at == kNever ? std::nullopt : std::optional(at.ns));
    });
  }

  void choose(const RoomRequest& request, Victims& victims) override {
    const py::gil_scoped_acquire acquire;
    lend(
        victims, "victims: its choose() is over",
        [&](const auto& lent) {
          (*choose_)(
              ShownRequest{request, request.newcomer == nullptr ? std::nullopt
                                                                : std::optional(*request.newcomer)},
              lent);
        },
        name_);
  }

  void check_invariants(const TierView& tier) const override {
    call(check_invariants_, [&](const py::object& method) {
      py::list residents;
      tier.for_each_resident([&](const EntryView& entry, bool offered) {
        residents.append(py::make_tuple(entry, offered));
      });
      check(name_, [&] { method(residents); });
    });
  }

 private:
  std::string name_;
  /// Guarded by the interpreter's lock.
  std::shared_ptr<bool> running_ = std::make_shared<bool>(true);
  SharedObject on_start_;
  SharedObject on_insert_;
  SharedObject on_hit_;
  SharedObject on_release_;
  SharedObject on_resize_;
  SharedObject on_split_;
  SharedObject on_remove_;
  SharedObject on_queue_change_;
  SharedObject on_next_use_;
  SharedObject choose_;
  SharedObject check_invariants_;
};

/// A copy of a RoutedRequest. Python may keep it after the call.
struct ShownRouted {
  RoutedRequest request;
  std::vector<std::uint64_t> blocks;
};

ShownRouted shown(const RoutedRequest& request) {
  ShownRouted copy{request, {}};
  copy.blocks = values_of(request.blocks);
  copy.request.blocks = {};
  return copy;
}

std::optional<std::uint32_t> instance_or_none(InstanceId instance) {
  return instance.valid() ? std::optional(instance.value) : std::nullopt;
}

/// A routing policy whose decisions a Python object makes.
class PythonRouting final : public RoutingPolicy {
 public:
  /// The interpreter is held.
  PythonRouting(std::string name, const py::object& policy, const py::object& base)
      : name_(std::move(name)) {
    needs_.blocks = policy.attr("blocks").cast<bool>();
    needs_.block_events = policy.attr("block_events").cast<bool>();
    const PythonMethods method(policy, base);
    on_start_ = method("on_start", true);
    on_joined_ = method("on_joined", true);
    on_lost_ = method("on_lost", true);
    on_load_ = method("on_load", true);
    choose_ = method("choose", false);
    on_dispatched_ = method("on_dispatched", true);
    on_first_token_ = method("on_first_token", true);
    on_finished_ = method("on_finished", true);
    on_blocks_stored_ = method("on_blocks_stored", true);
    on_blocks_removed_ = method("on_blocks_removed", true);
    check_invariants_ = method("check_invariants", true);
  }

  [[nodiscard]] RoutingNeeds needs() const override { return needs_; }
  void on_start(const RoutingFacts& facts) override {
    call(on_start_, [&](const py::object& method) {
      method(facts.instances, facts.block_tokens.value, phase_name(facts.phase));
    });
  }
  void on_joined(InstanceId instance, SimTime now) override {
    call(on_joined_, [&](const py::object& method) { method(instance.value, now.ns); });
  }
  void on_lost(InstanceId instance, SimTime now) override {
    call(on_lost_, [&](const py::object& method) { method(instance.value, now.ns); });
  }
  void on_load(InstanceId instance, const InstanceLoad& load, SimTime now) override {
    call(on_load_, [&](const py::object& method) { method(instance.value, load, now.ns); });
  }
  InstanceId choose(const RoutedRequest& request, const RoutingView& view) override {
    const py::gil_scoped_acquire acquire;
    const py::object chosen =
        lend(view, "view: its choose() is over",
             [&](const auto& lent) -> py::object { return (*choose_)(shown(request), lent); });
    if (const std::optional<std::int64_t> number = number_of(chosen)) {
      for (const InstanceId candidate : view.candidates) {
        if (*number == std::int64_t{candidate.value}) {
          return candidate;
        }
      }
    }
    throw py::value_error(fmt::format("{}.choose: expected one of the candidates, got {}", name_,
                                      py::repr(chosen).cast<std::string>()));
  }
  void on_dispatched(const RoutedRequest& request, InstanceId instance, SimTime now) override {
    call(on_dispatched_,
         [&](const py::object& method) { method(shown(request), instance.value, now.ns); });
  }
  void on_first_token(std::uint64_t request, InstanceId instance, SimTime now) override {
    call(on_first_token_,
         [&](const py::object& method) { method(request, instance.value, now.ns); });
  }
  void on_finished(std::uint64_t request, InstanceId instance, SimTime now) override {
    call(on_finished_, [&](const py::object& method) { method(request, instance.value, now.ns); });
  }
  void on_blocks_stored(InstanceId instance, BlockMedium medium, std::span<const BlockHash> blocks,
                        SimTime now) override {
    call(on_blocks_stored_, [&](const py::object& method) {
      method(instance_or_none(instance), medium_name(medium), values_of(blocks), now.ns);
    });
  }
  void on_blocks_removed(InstanceId instance, BlockMedium medium, std::span<const BlockHash> blocks,
                         SimTime now) override {
    call(on_blocks_removed_, [&](const py::object& method) {
      method(instance_or_none(instance), medium_name(medium), values_of(blocks), now.ns);
    });
  }
  void check_invariants(std::int64_t requests_in_flight) const override {
    call(check_invariants_,
         [&](const py::object& method) { check(name_, [&] { method(requests_in_flight); }); });
  }

 private:
  std::string name_;
  RoutingNeeds needs_;
  SharedObject on_start_;
  SharedObject on_joined_;
  SharedObject on_lost_;
  SharedObject on_load_;
  SharedObject choose_;
  SharedObject on_dispatched_;
  SharedObject on_first_token_;
  SharedObject on_finished_;
  SharedObject on_blocks_stored_;
  SharedObject on_blocks_removed_;
  SharedObject check_invariants_;
};

constexpr const char* kQueueOver = "queue: the call that it was given to is over";

/// An admission policy whose decisions a Python object makes.
class PythonAdmission final : public AdmissionPolicy {
 public:
  /// The interpreter is held.
  PythonAdmission(const std::string& /*name*/, const py::object& policy, const py::object& base) {
    const PythonMethods method(policy, base);
    on_use_ = method("on_use", true);
    admits_ = method("admits", false);
    replaces_ = method("replaces", true);
  }

  void on_use(EntryKey entry) override {
    call(on_use_, [&](const py::object& method) { method(entry.value); });
  }
  [[nodiscard]] bool admits(EntryKey entry) const override {
    const py::gil_scoped_acquire acquire;
    return (*admits_)(entry.value).cast<bool>();
  }
  [[nodiscard]] bool replaces(EntryKey newcomer, EntryKey victim) const override {
    if (!replaces_) {
      return true;
    }
    const py::gil_scoped_acquire acquire;
    return (*replaces_)(newcomer.value, victim.value).cast<bool>();
  }

 private:
  SharedObject on_use_;
  SharedObject admits_;
  SharedObject replaces_;
};

/// A prefetch policy whose decisions a Python object makes.
class PythonPrefetch final : public PrefetchPolicy {
 public:
  /// The interpreter is held.
  PythonPrefetch(std::string name, const py::object& policy, const py::object& base)
      : name_(std::move(name)) {
    const PythonMethods method(policy, base);
    on_demoted_ = method("on_demoted", true);
    next_fetch_ = method("next_fetch", false);
  }

  void on_demoted(EntryId entry, QueuePosition position) override {
    call(on_demoted_,
         [&](const py::object& method) { method(entry.value, position_or_none(position)); });
  }
  [[nodiscard]] std::optional<Fetch> next_fetch(const PrefetchContext& context) override {
    const py::gil_scoped_acquire acquire;
    const py::object answer =
        lend(*context.queue, kQueueOver, [&](const auto& queue) -> py::object {
          return lend(context, "context: its next_fetch() is over",
                      [&](const auto& lent) -> py::object { return (*next_fetch_)(queue, lent); });
        });
    if (answer.is_none()) {
      return std::nullopt;
    }
    try {
      const auto [entry, at] = py::isinstance<py::tuple>(answer)
                                   ? answer.cast<std::pair<std::uint32_t, std::int64_t>>()
                                   : std::pair(answer.cast<std::uint32_t>(), std::int64_t{0});
      if (is_waited_for(*context.queue, EntryId{entry}) && (*context.needs_fetch)(EntryId{entry})) {
        return Fetch{EntryId{entry}, SimTime(at)};
      }
    } catch (const py::cast_error&) {
      // The error below covers this case.
    }
    throw py::value_error(fmt::format(
        "{}.next_fetch: expected None, an entry of the queue that needs a fetch, or one and its "
        "time, got {}",
        name_, py::repr(answer).cast<std::string>()));
  }

 private:
  static bool is_waited_for(const QueueView& queue, EntryId entry) {
    for (QueuePosition at = queue.first(); at < queue.end(); ++at.value) {
      if (queue.entry_at(at) == entry) {
        return entry.valid();
      }
    }
    return false;
  }

  std::string name_;
  SharedObject on_demoted_;
  SharedObject next_fetch_;
};

/// An order policy whose decisions a Python object makes.
class PythonOrder final : public OrderPolicy {
 public:
  /// The interpreter is held.
  PythonOrder(std::string name, const py::object& policy, const py::object& base)
      : name_(std::move(name)),
        preempts_by_priority_(policy.attr("preempts_by_priority").cast<bool>()) {
    const PythonMethods method(policy, base);
    begin_batch_ = method("begin_batch", true);
    next_ = method("next", false);
    window_end_ = method("window_end", true);
  }

  void begin_batch(const QueueView& queue) override {
    call(begin_batch_, [&](const py::object& method) {
      lend(queue, kQueueOver, [&](const auto& lent) { method(lent); });
    });
  }
  [[nodiscard]] QueuePosition next(const QueueView& queue) override {
    const QueuePosition chosen = position_of(next_, "next", queue);
    if (chosen >= queue.end() || !queue.waiting_at(chosen)) {
      throw InvariantError(
          fmt::format("{}.next: no request waits at position {}", name_, chosen.value));
    }
    return chosen;
  }
  [[nodiscard]] QueuePosition window_end(const QueueView& queue) const override {
    return window_end_ ? position_of(window_end_, "window_end", queue) : queue.end();
  }
  [[nodiscard]] bool preempts_by_priority() const override { return preempts_by_priority_; }

 private:
  [[nodiscard]] QueuePosition position_of(const SharedObject& method, const char* what,
                                          const QueueView& queue) const {
    const py::gil_scoped_acquire acquire;
    const py::object answer =
        lend(queue, kQueueOver, [&](const auto& lent) -> py::object { return (*method)(lent); });
    if (const std::optional<std::int64_t> value = number_of(answer)) {
      const auto first = static_cast<std::int64_t>(queue.first().value);
      if (*value >= first && *value <= static_cast<std::int64_t>(queue.end().value)) {
        return QueuePosition{static_cast<decltype(QueuePosition::value)>(*value)};
      }
    }
    throw py::value_error(fmt::format("{}.{}: expected a position of the queue, got {}", name_,
                                      what, py::repr(answer).cast<std::string>()));
  }

  std::string name_;
  bool preempts_by_priority_;
  SharedObject begin_batch_;
  SharedObject next_;
  SharedObject window_end_;
};

/// Ctrl-C, or the interpreter's exit. It is no std::exception, because policy checks report those.
struct Interruption {
  std::shared_ptr<py::error_already_set> error;
};

template <class Interface, class Policy>
PolicyKind<Interface> kind_of(const py::object& declaration) {
  const auto text = [&](const char* name) { return declaration.attr(name).cast<std::string>(); };
  PolicyKind<Interface> kind{.name = text("name"),
                             .summary = text("summary"),
                             .source = text("source"),
                             .knowledge = Knowledge::online,
                             .parts_of_entries = declaration.attr("parts_of_entries").cast<bool>(),
                             .parameters = {},
                             .make = nullptr};
  const std::string knowledge = text("knowledge");
  for (const Knowledge known : {Knowledge::look_ahead, Knowledge::oracle}) {
    kind.knowledge = knowledge == to_string(known) ? known : kind.knowledge;
  }
  for (const py::handle parameter : declaration.attr("parameters")) {
    const auto text_of = [&](const char* name) { return parameter.attr(name).cast<std::string>(); };
    kind.parameters.push_back(
        {.name = text_of("name"),
         .documentation = text_of("documentation"),
         .unit = text_of("unit"),
         .minimum = parameter.attr("minimum").cast<double>(),
         .maximum = parameter.attr("maximum").cast<double>(),
         .default_value = parameter.attr("default").cast<std::optional<double>>()});
  }
  const SharedObject type = shared(declaration.attr("policy"));
  const SharedObject base = shared(declaration.attr("base"));
  kind.make = [name = kind.name, type, base](const PolicyParameters& parameters) {
    const py::gil_scoped_acquire acquire;
    py::dict arguments;
    for (const auto& [key, value] : parameters) {
      arguments[py::str(key)] = value;
    }
    try {
      return std::make_unique<Policy>(name, (*type)(**arguments), *base);
    } catch (const py::error_already_set& error) {
      if (error.matches(PyExc_Exception)) {
        throw;
      }
      throw Interruption{std::make_shared<py::error_already_set>(error)};
    }
  };
  return kind;
}

}  // namespace

PolicyRegistry make_registry(const std::vector<std::string>& plugins, const py::list& declared) {
  PolicyRegistry registry = load_policies(plugins);
  PolicyRegistry added;
  for (const py::handle each : declared) {
    const auto declaration = py::reinterpret_borrow<py::object>(each);
    const auto kind = declaration.attr("kind").cast<std::string>();
    if (kind == "eviction") {
      added.eviction.push_back(kind_of<EvictionPolicy, PythonEviction>(declaration));
    } else if (kind == "admission") {
      added.admission.push_back(kind_of<AdmissionPolicy, PythonAdmission>(declaration));
    } else if (kind == "prefetch") {
      added.prefetch.push_back(kind_of<PrefetchPolicy, PythonPrefetch>(declaration));
    } else if (kind == "order") {
      added.order.push_back(kind_of<OrderPolicy, PythonOrder>(declaration));
    } else {
      added.routing.push_back(kind_of<RoutingPolicy, PythonRouting>(declaration));
    }
  }
  std::vector<std::string> problems = add_policies(registry, std::move(added), "Python policies");
  if (!problems.empty()) {
    throw ConfigError(std::move(problems));
  }
  return registry;
}

void bind_views(py::module_& module) {
  py::register_local_exception_translator([](std::exception_ptr thrown) {
    try {
      std::rethrow_exception(std::move(thrown));
    } catch (const Interruption& interruption) {
      interruption.error->restore();
    }
  });
  py::class_<EntryView>(module, "Entry", "An entry as a tier holds it; times in nanoseconds.")
      .def_property_readonly("id", [](const EntryView& e) { return e.id.value; })
      .def_property_readonly("key", [](const EntryView& e) { return e.key.value; })
      .def_property_readonly("depth", [](const EntryView& e) { return e.depth.value; })
      .def_property_readonly("place", [](const EntryView& e) { return e.place; })
      .def_property_readonly("tokens", [](const EntryView& e) { return e.tokens.value; })
      .def_property_readonly("bytes", [](const EntryView& e) { return e.bytes.value; })
      .def_property_readonly("first_inserted",
                             [](const EntryView& e) { return e.first_inserted.ns; })
      .def_property_readonly("session_began", [](const EntryView& e) { return e.session_began.ns; })
      .def_property_readonly("last_used", [](const EntryView& e) { return e.last_used.ns; })
      .def_property_readonly("queue_position",
                             [](const EntryView& e) { return position_or_none(e.queue_position); })
      .def_property_readonly("next_use", [](const EntryView& e) {
        return e.next_use == kNever ? std::nullopt : std::optional(e.next_use.ns);
      });
  py::class_<ShownRequest>(module, "RoomRequest",
                           "A tier's request for room: its reason and its beneficiary.")
      .def_property_readonly("now", [](const ShownRequest& r) { return r.request.now.ns; })
      .def_property_readonly("demand",
                             [](const ShownRequest& r) { return to_string(r.request.demand); })
      .def_property_readonly(
          "incoming", [](const ShownRequest& r) { return position_or_none(r.request.incoming); })
      .def_property_readonly(
          "queue_first",
          [](const ShownRequest& r) { return position_or_none(r.request.queue_first); })
      .def_property_readonly(
          "window_end",
          [](const ShownRequest& r) { return position_or_none(r.request.window_end); })
      .def_property_readonly("newcomer", [](const ShownRequest& r) { return r.newcomer; });
  py::class_<LentVictims, std::shared_ptr<LentVictims>>(module, "Victims",
                                                        "The set of entries that a policy chooses.")
      .def(
          "offers",
          [](const LentVictims& v, std::uint32_t entry) { return v.get().offers(EntryId{entry}); },
          py::arg("entry"), "Whether the entry may leave and is not in the set yet.")
      .def(
          "wants_more", [](const LentVictims& v) { return v.get().wants_more(); },
          "False once the set frees the wanted room or is refused.")
      .def(
          "add",
          [](const LentVictims& v, std::uint32_t entry, std::int64_t keep) {
            try {
              return v.get().add(EntryId{entry}, Tokens(keep)).value;
            } catch (const InvariantError& error) {
              throw py::value_error(fmt::format("{}.choose: {}", v.policy(), error.what()));
            }
          },
          py::arg("entry"), py::arg("keep") = 0,
          "Adds the entry's tokens after its first `keep` ones. Returns the tokens that the entry "
          "keeps.");
  const auto at = [](const LentQueue& lent, std::uint64_t position) {
    const QueueView& queue = lent.get();
    if (position < queue.first().value || position >= queue.end().value) {
      throw py::index_error(fmt::format("the queue has no position {}", position));
    }
    return QueuePosition{static_cast<decltype(QueuePosition::value)>(position)};
  };
  py::class_<LentQueue, std::shared_ptr<LentQueue>>(
      module, "QueueView", "The waiting requests in order of arrival, by their positions.")
      .def_property_readonly("first", [](const LentQueue& q) { return q.get().first().value; })
      .def_property_readonly("end", [](const LentQueue& q) { return q.get().end().value; })
      .def_property_readonly(
          "window_end", [](const LentQueue& q) { return q.get().window_end().value; },
          "The end of the order policy's window.")
      .def(
          "waiting",
          [at](const LentQueue& q, std::uint64_t p) { return q.get().waiting_at(at(q, p)); },
          py::arg("position"), "Whether a request waits at the position.")
      .def(
          "entry",
          [at](const LentQueue& q, std::uint64_t p) {
            const EntryId entry = q.get().entry_at(at(q, p));
            return entry.valid() ? std::optional(entry.value) : std::nullopt;
          },
          py::arg("position"), "The stored entry that the request needs, or None.")
      .def(
          "priority",
          [at](const LentQueue& q, std::uint64_t p) { return q.get().priority_at(at(q, p)); },
          py::arg("position"), "The request's priority; smaller is more urgent.")
      .def(
          "stored_tokens",
          [at](const LentQueue& q, std::uint64_t p) {
            const FoundTokens found = q.get().find(at(q, p));
            return std::pair(found.nearest.value, found.total.value);
          },
          py::arg("position"),
          "In a system of blocks: stored tokens of the prompt, in the fastest tier and in all "
          "tiers.")
      .def(
          "common_prefix",
          [at](const LentQueue& q, std::uint64_t a, std::uint64_t b) {
            return q.get().common_prefix(at(q, a), at(q, b)).value;
          },
          py::arg("a"), py::arg("b"),
          "In a system of blocks: length of the common prefix of two prompts, in tokens.");
  py::class_<LentPrefetch, std::shared_ptr<LentPrefetch>>(
      module, "PrefetchContext", "The state that a prefetch policy sees; times in nanoseconds.")
      .def_property_readonly("now", [](const LentPrefetch& c) { return c.get().now.ns; })
      .def_property_readonly(
          "memory", [](const LentPrefetch& c) { return c.get().memory.value; },
          "Bytes that fetches may fill.")
      .def_property_readonly(
          "mean_entry", [](const LentPrefetch& c) { return c.get().mean_entry.value; },
          "Mean reserved bytes of an entry.")
      .def_property_readonly(
          "tpot",
          [](const LentPrefetch& c) {
            const auto tpot = c.get().running->tpot();
            return tpot ? std::optional(tpot->ns) : std::nullopt;
          },
          "Time per output token of the running requests; None before the first token.")
      .def_property_readonly(
          "running",
          [](const LentPrefetch& c) {
            std::vector<std::pair<std::int64_t, std::int64_t>> running;
            c.get().running->for_each_running([&](SimTime first_token, Tokens predicted) {
              running.emplace_back(first_token.ns, predicted.value);
            });
            return running;
          },
          "A pair for each running request: time of its first token, predicted output tokens.")
      .def(
          "needs_fetch",
          [](const LentPrefetch& c, std::uint32_t entry) {
            return (*c.get().needs_fetch)(EntryId{entry});
          },
          py::arg("entry"), "Whether the entry is only in a slower tier and not being fetched yet.")
      .def(
          "fetch_duration",
          [](const LentPrefetch& c, std::uint32_t entry) {
            return (*c.get().fetch_duration)(EntryId{entry}).ns;
          },
          py::arg("entry"), "Duration of a fetch of the entry without other transfers.");
  py::class_<ShownRouted>(module, "RoutedRequest", "A request as it reaches the router.")
      .def_property_readonly("id", [](const ShownRouted& r) { return r.request.id; })
      .def_property_readonly("session",
                             [](const ShownRouted& r) {
                               return r.request.session == kNoSession
                                          ? std::nullopt
                                          : std::optional(r.request.session);
                             })
      .def_property_readonly("request_class",
                             [](const ShownRouted& r) { return r.request.request_class; })
      .def_property_readonly("priority", [](const ShownRouted& r) { return r.request.priority; })
      .def_property_readonly("prompt", [](const ShownRouted& r) { return r.request.prompt.value; })
      .def_property_readonly("blocks", [](const ShownRouted& r) { return r.blocks; });
  py::class_<InstanceLoad>(module, "InstanceLoad", "An instance as its last report shows it.")
      .def_property_readonly("requests", [](const InstanceLoad& l) { return l.requests; })
      .def_property_readonly("waiting", [](const InstanceLoad& l) { return l.waiting; })
      .def_property_readonly("prefill_tokens",
                             [](const InstanceLoad& l) { return l.prefill_tokens.value; })
      .def_property_readonly("uncached_prefill_tokens",
                             [](const InstanceLoad& l) { return l.uncached_prefill_tokens.value; })
      .def_property_readonly("prefill_blocks",
                             [](const InstanceLoad& l) { return l.prefill_blocks; })
      .def_property_readonly("decode_blocks", [](const InstanceLoad& l) { return l.decode_blocks; })
      .def_property_readonly("kv_blocks", [](const InstanceLoad& l) { return l.kv_blocks; })
      .def_property_readonly("kv_blocks_capacity",
                             [](const InstanceLoad& l) { return l.kv_blocks_capacity; })
      .def_property_readonly("alive", [](const InstanceLoad& l) { return l.alive; });
  py::class_<LentRouting, std::shared_ptr<LentRouting>>(
      module, "RoutingView", "The state that a routing policy sees; times in nanoseconds.")
      .def_property_readonly("now", [](const LentRouting& v) { return v.get().now.ns; })
      .def_property_readonly("candidates",
                             [](const LentRouting& v) {
                               std::vector<std::uint32_t> candidates;
                               for (const InstanceId instance : v.get().candidates) {
                                 candidates.push_back(instance.value);
                               }
                               return candidates;
                             })
      .def(
          "load",
          [](const LentRouting& v, std::uint32_t instance) {
            if (instance >= v.get().loads.size()) {
              throw py::index_error(fmt::format("there is no instance {}", instance));
            }
            return v.get().load(InstanceId{instance});
          },
          py::arg("instance"), "The InstanceLoad of any instance of the group.")
      .def(
          "random", [](const LentRouting& v) { return v.get().random->uniform(); },
          "A random number >= 0 and < 1; the same for the same seed.")
      .def(
          "random_index",
          [](const LentRouting& v, std::int64_t bound) {
            if (bound < 1) {
              throw py::value_error("bound: expected a whole number > 0");
            }
            return v.get().random->index(bound);
          },
          py::arg("bound"), "A random whole number from 0 to bound - 1.");
}

}  // namespace kvtier::python
