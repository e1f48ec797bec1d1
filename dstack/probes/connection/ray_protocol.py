"""What dstack asks the GCS and the agents of nodes for, piece by piece; Ray 2.46 and 2.60."""

from __future__ import annotations

from functools import cache

from dstack.observed.node import Stage
from dstack.probes.connection import ray_stubs
from dstack.probes.node.ray_messages import NEW, Piece, Protocol, folder_of_module, release_of_folder

EVENTS: Stage = "task events"
PIECES = (
    # Nodes
    Piece("the nodes", "NodeInfoGcsService", "GetAllNodeInfo CheckAlive", "method", is_vital=True),
    Piece("the nodes", "GetAllNodeInfoReply", "node_info_list:list", is_vital=True),
    Piece(
        "the nodes",
        "GcsNodeInfo",
        "node_id:bytes node_manager_address:text node_manager_port:int state:enum",
        is_vital=True,
    ),
    Piece("which nodes are alive", "GcsNodeInfo.GcsNodeState", "ALIVE", "value", is_vital=True, others="DEAD"),
    Piece("the resources of nodes", "GcsNodeInfo", "resources_total:map", is_vital=True),
    Piece("the names and labels of nodes", "GcsNodeInfo", "node_manager_hostname:text labels:map"),
    Piece("which node is the head", "GcsNodeInfo", "is_head_node:bool"),
    Piece("when nodes started and ended", "GcsNodeInfo", "start_time_ms:int end_time_ms:int"),
    Piece("why nodes died", "GcsNodeInfo", "death_info:NodeDeathInfo"),
    Piece("why nodes died", "NodeDeathInfo", "reason_message:text"),
    # Workers and jobs
    Piece("the workers", "WorkerInfoGcsService", "GetAllWorkerInfo", "method", is_vital=True),
    Piece("the workers", "GetAllWorkerInfoReply", "worker_table_data:list", is_vital=True),
    Piece(
        "the workers",
        "WorkerTableData",
        "is_alive:bool worker_address:Address worker_type:enum pid:int",
        is_vital=True,
    ),
    Piece(
        "which workers are drivers",
        "WorkerType",
        "DRIVER",
        "value",
        is_vital=True,
        others="WORKER SPILL_WORKER RESTORE_WORKER",
    ),
    Piece("the workers", "Address", "node_id|raylet_id:bytes ip_address:text port:int worker_id:bytes", is_vital=True),
    Piece("when and why workers ended", "WorkerTableData", "exit_detail:text end_time_ms:int"),
    Piece("the jobs", "JobInfoGcsService", "GetAllJobInfo", "method", is_vital=True),
    Piece("the jobs", "GetAllJobInfoReply", "job_info_list:list", is_vital=True),
    Piece(
        "the jobs",
        "JobTableData",
        "job_id:bytes is_dead:bool driver_ip_address:text driver_pid:int driver_address:Address config:JobConfig",
        is_vital=True,
    ),
    Piece("which jobs are dstack's own", "JobConfig", "ray_namespace:text", is_vital=True),
    Piece("the programs of jobs", "JobTableData", "entrypoint:text"),
    Piece("whether task events are missing", "JobTableData", "start_time:int"),
    Piece("when jobs ended", "JobTableData", "end_time:int"),
    Piece("where jobs write dumps", "JobConfig", "runtime_env_info:RuntimeEnvInfo"),
    Piece("the submission ids of jobs", "JobConfig", "metadata:map"),
    # Actors
    Piece("the actors", "ActorInfoGcsService", "GetAllActorInfo", "method", is_vital=True),
    Piece("the actors", "GetAllActorInfoReply", "actor_table_data:list", is_vital=True),
    Piece(
        "the actors",
        "ActorTableData",
        "actor_id:bytes job_id:bytes state:enum address:Address owner_address:Address class_name:text pid:int"
        " is_detached:bool required_resources:map resource_mapping:list placement_group_id:bytes",
        is_vital=True,
    ),
    Piece(
        "the states of actors",
        "ActorTableData.ActorState",
        "PENDING_CREATION ALIVE RESTARTING DEAD",
        "value",
        is_vital=True,
        others="DEPENDENCIES_UNREADY",
    ),
    Piece("the resources that actors hold", "ResourceMapEntry", "name:text resource_ids:list", is_vital=True),
    Piece("the resources that actors hold", "ResourceId", "quantity:float", is_vital=True),
    Piece("the names of actors", "ActorTableData", "name:text ray_namespace:text"),
    Piece("the restarts of actors", "ActorTableData", "num_restarts:int max_restarts:int"),
    Piece("when actors ended", "ActorTableData", "end_time:int"),
    Piece("where actors write dumps", "ActorTableData", "serialized_runtime_env:text"),
    Piece("why actors died", "ActorTableData", "death_cause:ActorDeathCause"),
    Piece("why actors died", "ActorDeathCause", "actor_died_error_context:ActorDiedErrorContext"),
    Piece("why actors died", "ActorDiedErrorContext", "error_message:text reason:enum"),
    Piece(
        "the labels that actors ask for",
        "ActorTableData",
        "label_selector:map fallback_strategy:FallbackStrategy",
        since=NEW,
    ),
    Piece("the labels that actors ask for", "FallbackStrategy", "options:list", since=NEW),
    Piece("the labels that actors ask for", "FallbackOption", "label_selector:LabelSelector", since=NEW),
    Piece("the labels that actors ask for", "LabelSelector", "label_constraints:list", since=NEW),
    Piece(
        "the labels that actors ask for",
        "LabelSelectorConstraint",
        "label_key:text operator:enum label_values:list",
        since=NEW,
    ),
    Piece("the labels that actors ask for", "LabelSelectorOperator", "LABEL_OPERATOR_NOT_IN", "value", since=NEW),
    Piece("how earlier processes of actors ended", "ActorTableData", "previous_incarnations:list", since=NEW),
    Piece("how earlier processes of actors ended", "PreviousActorIncarnation", "worker_id:bytes", since=NEW),
    # Placement groups and resources
    Piece("the placement groups", "PlacementGroupInfoGcsService", "GetAllPlacementGroup", "method", is_vital=True),
    Piece("the placement groups", "GetAllPlacementGroupReply", "placement_group_table_data:list", is_vital=True),
    Piece(
        "the placement groups",
        "PlacementGroupTableData",
        "placement_group_id:bytes state:enum bundles:list creator_job_id:bytes creator_actor_id:bytes is_detached:bool",
        is_vital=True,
    ),
    Piece(
        "the states of placement groups",
        "PlacementGroupTableData.PlacementGroupState",
        "PENDING PREPARED CREATED REMOVED RESCHEDULING",
        "value",
        is_vital=True,
    ),
    Piece("the placement groups", "Bundle", "unit_resources:map node_id:bytes", is_vital=True),
    Piece("the labels that bundles ask for", "Bundle", "label_selector:map", since=NEW),
    Piece("the names of placement groups", "PlacementGroupTableData", "name:text ray_namespace:text"),
    Piece("how placement groups are placed", "PlacementGroupTableData", "strategy:enum stats:PlacementGroupStats"),
    Piece(
        "how placement groups are placed",
        "PlacementGroupStats",
        "scheduling_state:enum creation_request_received_ns:int",
    ),
    Piece(
        "the resources of nodes",
        "NodeResourceInfoGcsService",
        "GetAllTotalResources GetAllAvailableResources",
        "method",
        is_vital=True,
    ),
    Piece("the resources of nodes", "GetAllTotalResourcesReply", "resources_list:list", is_vital=True),
    Piece("the resources of nodes", "TotalResources", "node_id:bytes resources_total:map", is_vital=True),
    Piece("the free resources", "GetAllAvailableResourcesReply", "resources_list:list", is_vital=True),
    Piece("the free resources", "AvailableResources", "node_id:bytes resources_available:map", is_vital=True),
    Piece("whether nodes can be added", "InternalKVGcsService", "InternalKVGet", "method", is_vital=True),
    Piece("whether nodes can be added", "InternalKVGetReply", "value:bytes", is_vital=True),
    Piece(
        "whether nodes can be added", "autoscaler.AutoscalerStateService", "GetClusterStatus", "method", is_vital=True
    ),
    Piece(
        "whether nodes can be added",
        "autoscaler.GetClusterStatusReply",
        "autoscaling_state:autoscaler.AutoscalingState cluster_resource_state:autoscaler.ClusterResourceState",
        is_vital=True,
    ),
    Piece(
        "whether nodes can be added",
        "autoscaler.AutoscalingState",
        "pending_instance_requests:list pending_instances:list failed_instance_requests:list"
        " autoscaler_state_version:int",
        is_vital=True,
    ),
    Piece("whether nodes can be added", "autoscaler.ClusterResourceState", "node_states:list", is_vital=True),
    Piece("whether nodes can be added", "autoscaler.NodeState", "ray_node_type_name:text", is_vital=True),
    Piece(
        "what the autoscaler does",
        "autoscaler.AutoscalingState",
        "infeasible_resource_requests:list infeasible_gang_resource_requests:list",
    ),
    Piece("what the autoscaler does", "autoscaler.ResourceRequest", "resources_bundle:map"),
    Piece("what the autoscaler does", "autoscaler.GangResourceRequest", "details:text"),
    Piece(
        "what the autoscaler does",
        "autoscaler.PendingInstanceRequest",
        "ray_node_type_name:text count:int request_ts:int",
    ),
    Piece("what the autoscaler does", "autoscaler.PendingInstance", "ray_node_type_name:text details:text"),
    Piece(
        "what the autoscaler does",
        "autoscaler.FailedInstanceRequest",
        "ray_node_type_name:text count:int reason:text failed_ts:int",
    ),
    # Task events
    Piece("the history of tasks", "TaskInfoGcsService", "GetTaskEvents", "method", is_vital=True),
    Piece("the history of tasks", "GetTaskEventsReply", "events_by_task:list", is_vital=True),
    Piece(
        "the history of tasks",
        "TaskEvents",
        "task_id:bytes attempt_number:int job_id:bytes task_info:TaskInfoEntry state_updates:TaskStateUpdate",
        is_vital=True,
    ),
    Piece("the history of tasks", "TaskStateUpdate", "state_ts_ns:map node_id:bytes worker_id:bytes", is_vital=True),
    Piece(
        "the history of tasks",
        "TaskInfoEntry",
        "type:enum name:text func_or_class_name:text job_id:bytes parent_task_id:bytes actor_id:bytes"
        " required_resources:map placement_group_id:bytes",
        is_vital=True,
    ),
    Piece(
        "the states of tasks",
        "TaskStatus",
        "PENDING_ARGS_AVAIL PENDING_NODE_ASSIGNMENT SUBMITTED_TO_WORKER RUNNING FINISHED FAILED",
        "value",
        is_vital=True,
        others="NIL PENDING_OBJ_STORE_MEM_AVAIL PENDING_ARGS_FETCH PENDING_ACTOR_TASK_ARGS_FETCH"
        " PENDING_ACTOR_TASK_ORDERING_OR_CONCURRENCY RUNNING_IN_RAY_GET RUNNING_IN_RAY_WAIT GETTING_AND_PINNING_ARGS",
    ),
    Piece("which actor calls have arrived", "TaskStatus", "PENDING_ACTOR_TASK_ORDERING_OR_CONCURRENCY", "value"),
    Piece(
        "the kinds of tasks",
        "TaskType",
        "NORMAL_TASK ACTOR_CREATION_TASK ACTOR_TASK",
        "value",
        is_vital=True,
        others="DRIVER_TASK",
    ),
    Piece(
        "how complete the history of tasks is",
        "GetTaskEventsReply",
        "num_status_task_events_dropped:int num_total_stored:int num_truncated:int",
        stage=EVENTS,
    ),
    Piece("why tasks failed", "TaskStateUpdate", "error_info:RayErrorInfo worker_pid:int", stage=EVENTS),
    Piece("why tasks failed", "RayErrorInfo", "error_message:text error_type:enum", stage=EVENTS),
    Piece(
        "the labels that tasks ask for",
        "TaskInfoEntry",
        "label_selector:map fallback_strategy:FallbackStrategy",
        since=NEW,
        stage=EVENTS,
    ),
    Piece("where tasks failed", "TaskEvents", "profile_events:ProfileEvents", stage=EVENTS),
    Piece("where tasks failed", "ProfileEvents", "events:list", stage=EVENTS),
    Piece("where tasks failed", "ProfileEventEntry", "extra_data:text event_name:text", stage=EVENTS),
    # Agents
    Piece("the agents of nodes", "InternalKVGcsService", "InternalKVMultiGet", "method"),
    Piece("the agents of nodes", "InternalKVMultiGetReply", "results:list"),
    Piece("the agents of nodes", "MapFieldEntry", "key:bytes value:bytes"),
    Piece("the stacks that agents read", "ReporterService", "GetTraceback", "method"),
    Piece("the stacks that agents read", "GetTracebackReply", "output:text success:bool"),
)


@cache
def protocol(pieces: tuple[Piece, ...] = PIECES) -> Protocol:
    """The pieces in the Ray that dstack uses."""
    modules = ("common_pb2", "gcs_pb2", "gcs_service_pb2", "autoscaler_pb2", "reporter_pb2", "core_worker_pb2")
    common, *_ = (getattr(ray_stubs, name) for name in modules)
    return Protocol(pieces, common.DESCRIPTOR.pool, release_of_folder(folder_of_module(common)))
