"""Stands in for vLLM's worker: it computes nothing and reports each step as done."""

from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import OffloadingWorkerMetadata
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput


class Worker:
    """Runs the steps of a scheduler and keeps what each request found on its first admission.

    A load is done in the step that starts it. A store starts with the step after the one that asks for it, as in vLLM's
    worker, and is done in that step.
    """

    def __init__(self, scheduler, offloading):
        self.scheduler = scheduler
        self.offloading = offloading
        self.found_gpu = {}
        self.found_cpu = {}
        self.preemptions = 0
        self.steps = 0
        # Whether a load or a store was done in the last step.
        self.moved = False
        self._responses = {}
        self._waiting_stores = []
        self._waiting_loads = {}
        self._watch_admissions()

    def submit(self, request, response):
        self._responses[request.request_id] = iter(response)
        self.scheduler.add_request(request)

    def busy(self):
        """Requests are unfinished, or stores of finished ones are not done."""
        if self.scheduler.has_requests():
            return True
        if not self.offloading:
            return False
        connector = self.scheduler.connector.connector_scheduler
        return bool(self._waiting_stores or self._waiting_loads or connector.has_pending_push_work())

    def step(self, transfers_done=True):
        """One step. Returns the scheduler's output; without `transfers_done`, loads and stores stay in flight."""
        plan = self.scheduler.schedule()
        self.steps += 1
        moved = self._move(plan, transfers_done) if self.offloading else None
        names = list(plan.num_scheduled_tokens)
        tokens = [self._next_tokens(self.scheduler.requests[name]) for name in names]
        self.scheduler.update_from_output(plan, ModelRunnerOutput(
            req_ids=names, req_id_to_index={name: i for i, name in enumerate(names)}, sampled_token_ids=tokens,
            logprobs=None, prompt_logprobs_dict={}, pooler_output=[], kv_connector_output=moved))
        self.moved = moved is not None and moved.kv_connector_worker_meta is not None
        return plan

    def _next_tokens(self, request):
        """A request whose tokens are all computed samples one; a prompt cut into chunks samples none before its end."""
        if request.num_computed_tokens < request.num_tokens:
            return []
        return [next(self._responses[request.request_id])]

    def _move(self, plan, transfers_done):
        jobs = plan.kv_connector_metadata
        done, loaded = {}, set()
        self._waiting_loads.update((job, load.req_id) for job, load in jobs.load_jobs.items())
        for job in list(jobs.jobs_to_flush or ()):
            # The scheduler reuses the blocks at once, so these stores cannot wait for the next step.
            if jobs.store_jobs.pop(job, None) is not None or job in self._waiting_stores:
                done[job] = 1
        if transfers_done:
            done.update((job, 1) for job in [*self._waiting_stores, *self._waiting_loads])
            loaded = set(self._waiting_loads.values())
            self._waiting_loads = {}
        self._waiting_stores = [job for job in self._waiting_stores if job not in done] + list(jobs.store_jobs)
        return KVConnectorOutput(
            finished_sending=set(), finished_recving=loaded,
            kv_connector_worker_meta=OffloadingWorkerMetadata(completed_jobs=done) if done else None)

    def _watch_admissions(self):
        manager = self.scheduler.kv_cache_manager
        record = manager.record_prefix_cache_stats

        def recorded(request, hits, *others, **named):
            self.found_gpu.setdefault(request.request_id, hits)
            return record(request, hits, *others, **named)

        manager.record_prefix_cache_stats = recorded
        preempt = self.scheduler._preempt_request

        def preempted(*others, **named):
            self.preemptions += 1
            return preempt(*others, **named)

        self.scheduler._preempt_request = preempted
        if not self.offloading:
            return
        update = self.scheduler.connector.update_state_after_alloc

        def updated(request, blocks, tokens, *others, **named):
            # vLLM calls this before it records what the GPU had.
            if request.request_id not in self.found_gpu:
                self.found_cpu[request.request_id] = tokens
            return update(request, blocks, tokens, *others, **named)

        self.scheduler.connector.update_state_after_alloc = updated
